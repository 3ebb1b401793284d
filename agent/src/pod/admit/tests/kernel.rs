//! What the kernel has to allow or to enforce: sysctls and profiles.

use super::*;

#[test]
fn sysctls_are_safe_or_allowed_and_never_the_nodes_own() {
    let mut node = node();
    node.unsafe_sysctls = vec![
        "kernel.msg*".into(),
        "net.core.somaxconn".into(),
        "net/ipv4/conf/*".into(),
        "user.*".into(),
    ];
    let pod = |fields: Value, name: &str| {
        let mut fields = fields;
        fields["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
        with(fields)
    };
    let table = [
        (json!({}), "kernel.shm_rmid_forced", "admitted"),
        (json!({}), "kernel/shm_rmid_forced", "admitted"),
        (json!({}), "net.ipv4.tcp_rmem", "admitted"),
        (json!({}), "kernel.msgmax", "admitted"),
        (json!({}), "net.core.somaxconn", "admitted"),
        (json!({}), "net/ipv4/conf/eth0.1/forwarding", "admitted"),
        (
            json!({}),
            "net.core.other",
            "SysctlForbidden: forbidden sysctl: \"net.core.other\" not allowlisted",
        ),
        (
            json!({}),
            "kernel/core_pattern",
            "SysctlForbidden: forbidden sysctl: \"kernel.core_pattern\" not allowlisted",
        ),
        (
            json!({}),
            "",
            "SysctlForbidden: forbidden sysctl: \"\" not allowlisted",
        ),
        (
            json!({"hostNetwork": true}),
            "net.ipv4.ip_local_port_range",
            "SysctlForbidden: forbidden sysctl: \"net.ipv4.ip_local_port_range\" not allowed with host Net enabled",
        ),
        (
            json!({"hostNetwork": true}),
            "kernel.shm_rmid_forced",
            "admitted",
        ),
        (
            json!({"hostUsers": false}),
            "user.max_user_namespaces",
            "admitted",
        ),
        (
            json!({}),
            "user.max_user_namespaces",
            "SysctlForbidden: forbidden sysctl: \"user.max_user_namespaces\" not allowed with host User enabled",
        ),
        (
            json!({}),
            "net.ipv4.ip_local_port_range.a.b.c",
            "SysctlForbidden: forbidden sysctl: \"net.ipv4.ip_local_port_range.a.b.c\" not allowlisted",
        ),
        (
            json!({"hostIPC": true}),
            "kernel.msgmnb",
            "SysctlForbidden: forbidden sysctl: \"kernel.msgmnb\" not allowed with host IPC enabled",
        ),
    ];
    for (fields, name, want) in table {
        assert_eq!(told(&pod(fields, name), &node, &[]), want, "{name}");
    }
}

#[test]
fn patterns_that_reach_beyond_pods_are_refused() {
    for good in [
        "kernel.shm*",
        "kernel.msg*",
        "kernel.sem",
        "fs.mqueue.*",
        "net.*",
        "net/core/somaxconn",
        "kernel/msg*",
        "kernel/sem",
        "user.*",
    ] {
        assert_eq!(check_pattern(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        "*",
        "kernel.*",
        "kernel.core_pattern",
        "vm.overcommit_memory",
        "fs.*",
        " kernel.msg*",
        "kernel.msg* ",
        "net.-",
        "net.a-",
        "net.*.foo",
        "net.*/foo",
        "net..*",
        "net.A",
        "foo",
        "foo*",
    ] {
        assert_eq!(
            check_pattern(bad),
            Err(SysctlPatternError(bad.to_owned())),
            "{bad}"
        );
    }
}

#[test]
fn profiles_need_a_kernel_that_enforces_them() {
    let table = [
        (json!({"type": "Unconfined"}), false, "admitted"),
        (json!({"type": "RuntimeDefault"}), true, "admitted"),
        (
            json!({"type": "RuntimeDefault"}),
            false,
            "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (
            json!({"type": "Localhost", "localhostProfile": "p"}),
            false,
            "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (
            json!({"type": "Localhost", "localhostProfile": " "}),
            true,
            "AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name: \
             \"&AppArmorProfile{Type:Localhost,LocalhostProfile:* ,}\"",
        ),
    ];
    for (profile, app_armor, want) in table {
        let node = NodeView {
            app_armor,
            ..node()
        };
        let of_pod = with(json!({"securityContext": {"appArmorProfile": profile.clone()}}));
        let of_container = with(json!({"containers": [{"name": "c", "image": "i",
            "securityContext": {"appArmorProfile": profile.clone()}}]}));
        for pod in [of_pod, of_container] {
            assert_eq!(told(&pod, &node, &[]), want, "{profile}");
        }
    }
}
