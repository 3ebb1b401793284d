//! Security contexts. Pure.

use std::path::Path;

use hanok_runtime::api::{
    AppArmorProfile, NamespaceMode, SeccompProfile, SecurityContext, SelinuxOptions,
};
use k8s_openapi::api::core::v1::{self, Container, Pod, PodSecurityContext, SELinuxOptions};

use crate::pod::{app_armor, spec};

/// What the mapping needs beside the specification.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// USER of the image.
    pub image_user: &'a str,
    /// Directory of Localhost profiles.
    pub seccomp_dir: &'a Path,
    /// Whether RuntimeDefault stands in for no profile.
    pub seccomp_default: bool,
}

/// Maps the pod's and the container's security contexts; the container's wins. The error is what the user reads.
pub fn security_context(
    pod: &Pod,
    container: &Container,
    context: &Context<'_>,
) -> Result<SecurityContext, String> {
    let none = (
        PodSecurityContext::default(),
        v1::SecurityContext::default(),
    );
    let of_pod = spec::spec(pod)
        .and_then(|spec| spec.security_context.as_ref())
        .unwrap_or(&none.0);
    let own = container.security_context.as_ref().unwrap_or(&none.1);
    let run_as_user = id(own.run_as_user.or(of_pod.run_as_user), "runAsUser")?;
    if own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true) {
        let user = run_as_user.map(|user| user.to_string());
        check_non_root(pod, container, user.as_deref(), context.image_user)?;
    }
    let privileged = own.privileged.unwrap_or(false);
    let groups = of_pod
        .supplemental_groups
        .iter()
        .flatten()
        .copied()
        .chain(of_pod.fs_group);
    let groups = groups.map(|group| id(Some(group), "supplementalGroups"));
    let proc_unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let host_users = spec::spec(pod).and_then(|spec| spec.host_users);
    if proc_unmasked && host_users != Some(false) {
        return Err(
            "procMount Unmasked needs users of the pod's own (hostUsers: false)".to_owned(),
        );
    }
    let capabilities = own.capabilities.as_ref();
    Ok(SecurityContext {
        privileged,
        run_as_user,
        run_as_group: id(own.run_as_group.or(of_pod.run_as_group), "runAsGroup")?,
        supplemental_groups: groups
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?,
        strict_groups: of_pod.supplemental_groups_policy.as_deref() == Some("Strict"),
        add_capabilities: capabilities
            .and_then(|caps| caps.add.clone())
            .unwrap_or_default(),
        drop_capabilities: capabilities
            .and_then(|caps| caps.drop.clone())
            .unwrap_or_default(),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        seccomp: if privileged {
            SeccompProfile::Unconfined
        } else {
            seccomp(
                own.seccomp_profile
                    .as_ref()
                    .or(of_pod.seccomp_profile.as_ref()),
                context,
            )?
        },
        app_armor: app_armor::profile(pod, container)
            .map(app_armor_profile)
            .transpose()?,
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or(of_pod.se_linux_options.as_ref())
            .map(selinux_options),
        proc_unmasked,
        pid: None::<NamespaceMode>,
    })
}

/// An id as the kernel takes it.
fn id(value: Option<i64>, field: &str) -> Result<Option<u32>, String> {
    let check =
        |value| u32::try_from(value).map_err(|_| format!("{field} {value} is no user or group id"));
    value.map(check).transpose()
}

/// Refuses root for `runAsNonRoot`.
fn check_non_root(
    pod: &Pod,
    container: &Container,
    run_as_user: Option<&str>,
    image_user: &str,
) -> Result<(), String> {
    let at = format!(
        "(pod: \"{}\", container: {})",
        spec::display(pod),
        container.name
    );
    let image_user = image_user.split(':').next().unwrap_or_default();
    match (run_as_user, image_user) {
        (Some("0"), _) => Err(format!("container's runAsUser breaks non-root policy {at}")),
        (Some(_), _) => Ok(()),
        (None, "") => Err(format!(
            "container has runAsNonRoot and image will run as root {at}"
        )),
        (None, user) => match user.parse::<u32>() {
            Ok(0) => Err(format!(
                "container has runAsNonRoot and image will run as root {at}"
            )),
            Ok(_) => Ok(()),
            Err(_) => Err(format!(
                "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify \
                 user is non-root {at}"
            )),
        },
    }
}

/// The seccomp profile.
fn seccomp(
    profile: Option<&v1::SeccompProfile>,
    context: &Context<'_>,
) -> Result<SeccompProfile, String> {
    let Some(profile) = profile else {
        return Ok(match context.seccomp_default {
            true => SeccompProfile::RuntimeDefault,
            false => SeccompProfile::Unconfined,
        });
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(SeccompProfile::RuntimeDefault),
        "Unconfined" => Ok(SeccompProfile::Unconfined),
        "Localhost" => {
            let name = Path::new(profile.localhost_profile.as_deref().unwrap_or_default());
            let inside = name
                .components()
                .all(|part| matches!(part, std::path::Component::Normal(_)));
            if name.as_os_str().is_empty() || !inside {
                return Err(format!(
                    "localhostProfile {name:?} is no relative path below the seccomp directory"
                ));
            }
            Ok(SeccompProfile::Localhost(context.seccomp_dir.join(name)))
        }
        other => Err(format!("seccompProfile.type {other:?} is unknown")),
    }
}

/// The AppArmor profile.
fn app_armor_profile(profile: v1::AppArmorProfile) -> Result<AppArmorProfile, String> {
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(AppArmorProfile::RuntimeDefault),
        "Unconfined" => Ok(AppArmorProfile::Unconfined),
        "Localhost" => profile
            .localhost_profile
            .map(AppArmorProfile::Localhost)
            .ok_or_else(|| "missing localhost apparmor profile name".to_owned()),
        other => Err(format!("unknown apparmor profile type: {other:?}")),
    }
}

/// Parts of the SELinux label.
fn selinux_options(options: &SELinuxOptions) -> SelinuxOptions {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    SelinuxOptions {
        user: part(&options.user),
        role: part(&options.role),
        type_: part(&options.type_),
        level: part(&options.level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::{Value, json};

    fn mapped(of_pod: Value, own: Value, image_user: &str) -> Result<SecurityContext, String> {
        let pod = sample::from(json!({
            "securityContext": of_pod,
            "containers": [{"name": "c", "image": "i", "securityContext": own}],
        }));
        let context = Context {
            image_user,
            seccomp_dir: Path::new("/r/seccomp"),
            seccomp_default: true,
        };
        security_context(&pod, &spec::app_containers(&pod)[0], &context)
    }

    #[test]
    fn run_as_non_root_refuses_root_however_it_comes() {
        let non_root = || json!({"runAsNonRoot": true});
        let root = "container has runAsNonRoot and image will run as root";
        let table = [
            (
                json!({"runAsNonRoot": true, "runAsUser": 0}),
                "",
                Some("container's runAsUser breaks"),
            ),
            (json!({"runAsNonRoot": true, "runAsUser": 7}), "", None),
            (non_root(), "", Some(root)),
            (non_root(), "0:0", Some(root)),
            (non_root(), "1000:1000", None),
            (
                non_root(),
                "app",
                Some("container has runAsNonRoot and image has non-numeric user (app)"),
            ),
            // Whatever could be meant as 0 or become it; the runtime refuses what it cannot hold.
            (non_root(), "00", Some(root)),
            (non_root(), "+0", Some(root)),
            (non_root(), "0:1000", Some(root)),
            (non_root(), ":1000", Some(root)),
            (non_root(), "-1", Some("container has runAsNonRoot and")),
            (non_root(), " 0", Some("container has runAsNonRoot and")),
            (non_root(), "0x0", Some("container has runAsNonRoot and")),
            (
                non_root(),
                "4294967296",
                Some("container has runAsNonRoot and"),
            ),
            (
                non_root(),
                "99999999999999999999",
                Some("container has runAsNonRoot and"),
            ),
        ];
        for (own, user, want) in table {
            let result = mapped(json!({}), own.clone(), user);
            match want {
                None => assert!(result.is_ok(), "{own} {user}"),
                Some(want) => assert!(
                    result.expect_err("refused").starts_with(want),
                    "{own} {user}"
                ),
            }
        }
        let message = mapped(non_root(), json!({}), "").expect_err("refused");
        assert!(message.ends_with(&format!(
            "(pod: \"web_default({})\", container: c)",
            sample::UID
        )));
    }

    #[test]
    fn the_containers_choice_beats_the_pods() {
        let of_pod =
            json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]});
        let mapped = mapped(of_pod, json!({"runAsUser": 9}), "").expect("a context");
        assert_eq!(
            (mapped.run_as_user, mapped.run_as_group),
            (Some(9), Some(2))
        );
        assert_eq!(mapped.supplemental_groups, [4, 3]);
    }

    #[test]
    fn seccomp_is_on_unless_somebody_says_otherwise() {
        let seccomp = |own: Value| mapped(json!({}), own, "").map(|context| context.seccomp);
        assert_eq!(seccomp(json!({})), Ok(SeccompProfile::RuntimeDefault));
        assert_eq!(
            seccomp(json!({"privileged": true})),
            Ok(SeccompProfile::Unconfined)
        );
        let off = json!({"seccompProfile": {"type": "Unconfined"}});
        assert_eq!(seccomp(off), Ok(SeccompProfile::Unconfined));
        let local =
            |path: &str| json!({"seccompProfile": {"type": "Localhost", "localhostProfile": path}});
        assert_eq!(
            seccomp(local("a/b.json")),
            Ok(SeccompProfile::Localhost("/r/seccomp/a/b.json".into()))
        );
        for path in ["", "../x", "/etc/passwd", "a/../../x"] {
            assert!(seccomp(local(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn an_unmasked_proc_needs_users_of_the_pods_own() {
        let unmasked = |host_users: Value| {
            let pod = sample::from(json!({
                "hostUsers": host_users,
                "containers": [{"name": "c", "image": "i", "securityContext": {"procMount": "Unmasked"}}],
            }));
            let context = Context {
                image_user: "",
                seccomp_dir: Path::new("/r/seccomp"),
                seccomp_default: true,
            };
            security_context(&pod, &spec::app_containers(&pod)[0], &context)
                .map(|context| context.proc_unmasked)
        };
        assert_eq!(unmasked(json!(false)), Ok(true));
        for host_users in [json!(true), Value::Null] {
            assert!(unmasked(host_users).is_err());
        }
    }

    #[test]
    fn the_containers_selinux_options_replace_the_pods_as_a_whole() {
        let mapped = |of_pod: Value, own: Value| {
            let of_pod = json!({"seLinuxOptions": of_pod});
            let own = json!({"seLinuxOptions": own});
            let context = mapped(of_pod, own, "").expect("a context");
            let options = context.selinux_options?;
            Some([options.user, options.role, options.type_, options.level])
        };
        let level = || json!({"level": "s0:c1,c2"});
        let all = json!({"user": "u", "role": "r", "type": "t", "level": "s1"});
        assert_eq!(mapped(Value::Null, Value::Null), None);
        let want = ["", "", "", "s0:c1,c2"].map(str::to_owned);
        assert_eq!(mapped(level(), Value::Null), Some(want.clone()));
        assert_eq!(mapped(all.clone(), level()), Some(want));
        let want = ["u", "r", "t", "s1"].map(str::to_owned);
        assert_eq!(mapped(level(), all), Some(want));
    }

    #[test]
    fn an_app_armor_profile_is_what_its_type_says() {
        let asked = |profile: Value| {
            let own = json!({"privileged": true, "appArmorProfile": profile});
            mapped(json!({}), own, "").map(|context| context.app_armor)
        };
        assert_eq!(asked(Value::Null), Ok(None));
        let local = json!({"type": "Localhost", "localhostProfile": "mine"});
        let mine = AppArmorProfile::Localhost("mine".into());
        assert_eq!(asked(local), Ok(Some(mine)));
        let default = json!({"type": "RuntimeDefault"});
        assert_eq!(asked(default), Ok(Some(AppArmorProfile::RuntimeDefault)));
        let none = json!({"type": "Unconfined"});
        assert_eq!(asked(none), Ok(Some(AppArmorProfile::Unconfined)));
        assert!(asked(json!({"type": "Localhost"})).is_err());
        assert!(asked(json!({"type": "Odd"})).is_err());
    }

    #[test]
    fn ids_that_do_not_fit_are_refused() {
        assert!(mapped(json!({}), json!({"runAsUser": -1}), "").is_err());
        assert!(mapped(json!({"fsGroup": 1_i64 << 40}), json!({}), "").is_err());
    }
}
