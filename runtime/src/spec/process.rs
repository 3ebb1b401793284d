//! Arguments, environment, working directory and user of a container's process.

use std::collections::HashMap;
use std::path::PathBuf;

use hanok_shim::protocol::MAX_STRINGS;
use oci_spec::runtime::User;

use super::{ImageFacts, SpecError};
use crate::api::ContainerConfig;

/// PATH when neither image nor pod sets one.
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Largest user and group id: above it ids are negative for C programs that keep them in an int.
const MAX_ID: u64 = (1 << 31) - 1;

/// ENTRYPOINT and CMD against `command` and `args`: a command of the pod makes both of the image's void.
pub(super) fn args(config: &ContainerConfig, image: &ImageFacts) -> Result<Vec<String>, SpecError> {
    let mut command = config.command.clone();
    let mut args = config.args.clone();
    if command.is_empty() {
        if args.is_empty() {
            args.clone_from(&image.cmd);
        }
        // Dockerfiles reset an inherited entry point with [""].
        if image.entrypoint != [""] {
            command.clone_from(&image.entrypoint);
        }
    }
    command.append(&mut args);
    if command.is_empty() {
        return Err(SpecError::NoCommand);
    }
    no_nul("argument", &command)?;
    Ok(command)
}

/// HOSTNAME, PATH (and TERM with a terminal), then the image's variables, then the pod's; a later one
/// replaces an earlier one in its place.
pub(super) fn env(
    config: &ContainerConfig,
    image: &ImageFacts,
    hostname: &str,
) -> Result<Vec<String>, SpecError> {
    let mut env = vec![format!("HOSTNAME={hostname}"), DEFAULT_PATH.to_owned()];
    if config.tty {
        env.push("TERM=xterm".to_owned());
    }
    let pod = config
        .envs
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    // An image may have hundreds of thousands.
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, variable) in env.iter().enumerate() {
        places.insert(name(variable), place);
    }
    for variable in image.env.iter().cloned().chain(pod) {
        let place = *places.entry(name(&variable)).or_insert(env.len());
        match env.get_mut(place) {
            Some(before) => *before = variable,
            None => env.push(variable),
        }
    }
    no_nul("environment variable", &env)?;
    Ok(env)
}

/// Whether a program can be given them at all. How long each may be, and how much the limit of its stack leaves, is for
/// the kernel to say.
pub(super) fn fit(args: &[String], env: &[String]) -> Result<(), SpecError> {
    let size = |text: &String| text.len() + 1 + size_of::<usize>();
    let total = args.iter().chain(env).map(size).sum();
    if total <= MAX_STRINGS {
        return Ok(());
    }
    let largest = |list: &[String]| {
        let sizes = list.iter().map(size).enumerate();
        let (place, most) = sizes.max_by_key(|&(_, size)| size).unwrap_or_default();
        (most, place)
    };
    let ((of_args, word), (of_env, place)) = (largest(args), largest(env));
    let whose = match of_args > of_env {
        true => format!("argument {word}"),
        false => {
            let variable = env.get(place).map(String::as_str).unwrap_or_default();
            let name = variable.split('=').next().unwrap_or_default();
            // An image may have any.
            format!("variable {:?}", name.chars().take(64).collect::<String>())
        }
    };
    Err(SpecError::TooMuch {
        total,
        whose,
        most: of_args.max(of_env),
    })
}

/// The pod's working directory, the image's, or the root. The shim checks that it lies inside.
pub(super) fn cwd(config: &ContainerConfig, image: &ImageFacts) -> Result<PathBuf, SpecError> {
    let chosen = [&config.working_dir, &image.working_dir];
    let chosen = chosen.into_iter().find(|dir| !dir.is_empty());
    let cwd = chosen.map_or("/", String::as_str);
    no_nul("working directory", &[cwd.to_owned()])?;
    // An image may leave the slash out; it means the root all the same.
    Ok(PathBuf::from("/").join(cwd))
}

/// Who the process is, as numbers where they are given as such and as written in `username`.
pub(super) fn user(config: &ContainerConfig, image: &ImageFacts) -> Result<User, SpecError> {
    let security = &config.security;
    let written = match security.run_as_user {
        Some(uid) => uid.to_string(),
        None if image.user.is_empty() => "0".to_owned(),
        None => image.user.clone(),
    };
    let (name, group) = written.split_once(':').unwrap_or((&written, ""));
    let uid = id(&written, name)?;
    let gid = if group.is_empty() {
        None
    } else {
        id(&written, group)?
    };
    for given in [security.run_as_user, security.run_as_group]
        .into_iter()
        .flatten()
    {
        id(&given.to_string(), &given.to_string())?;
    }
    let gid = security.run_as_group.or(gid);
    let mut user = User::default();
    user.set_uid(uid.unwrap_or(0))
        .set_gid(gid.unwrap_or(0))
        .set_additional_gids(Some(security.supplemental_groups.clone()))
        .set_username(Some(written));
    Ok(user)
}

/// A number when the text is all digits. Digits are never a name, and a number out of range is never
/// anything else: both have let images run as root that were not allowed to.
fn id(whole: &str, part: &str) -> Result<Option<u32>, SpecError> {
    let invalid = |reason| SpecError::Invalid {
        field: "user",
        value: whole.to_owned(),
        reason,
    };
    if part.is_empty() {
        return Err(invalid("user or group is empty"));
    }
    if !part.bytes().all(|byte| byte.is_ascii_digit()) {
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == ':';
        let signed = part.starts_with(['+', '-']);
        return if signed || part.contains(odd) {
            Err(invalid("not a user or group name"))
        } else {
            Ok(None)
        };
    }
    let number = part.parse::<u64>().ok().filter(|number| *number <= MAX_ID);
    let number = number.and_then(|number| u32::try_from(number).ok());
    number
        .map(Some)
        .ok_or_else(|| invalid("id is greater than 2147483647"))
}

fn no_nul(field: &'static str, values: &[String]) -> Result<(), SpecError> {
    match values.iter().find(|value| value.contains('\0')) {
        Some(value) => Err(SpecError::Invalid {
            field,
            value: value.clone(),
            reason: "contains a NUL byte",
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_no_program_can_be_given_is_refused_with_what_is_largest() {
        let many = |count: usize, size: usize| {
            let one = |n: usize| format!("V{n}={}", "x".repeat(size + n));
            (0..count).map(one).collect::<Vec<String>>()
        };
        assert!(fit(&words(&["a"]), &many(50, 100_000)).is_ok());
        let refused = |args: &[String], env: &[String]| fit(args, env).unwrap_err().to_string();
        assert_eq!(
            refused(&words(&["a"]), &many(70, 100_000)),
            "arguments and environment have 7003325 bytes, variable \"V69\" alone 100082; a program can be given 6291456"
        );
        let text = refused(&many(70, 100_000), &words(&["A=b"]));
        assert!(text.contains("argument 69 alone"), "{text}");
    }

    #[test]
    fn command_and_args_replace_entrypoint_and_cmd() {
        type Words = &'static [&'static str];
        let table: [(Words, Words, Words, Words, Words); 7] = [
            (&["e"], &["c"], &[], &[], &["e", "c"]),
            (&["e"], &["c"], &["x"], &[], &["x"]),
            (&["e"], &["c"], &[], &["a"], &["e", "a"]),
            (&["e"], &["c"], &["x"], &["a"], &["x", "a"]),
            (&[], &["c"], &[], &[], &["c"]),
            (&[""], &["c"], &[], &[], &["c"]),
            (&[], &[], &[], &["a"], &["a"]),
        ];
        for (entrypoint, cmd, command, args_, expected) in table {
            let image = ImageFacts {
                entrypoint: words(entrypoint),
                cmd: words(cmd),
                ..ImageFacts::default()
            };
            let config = ContainerConfig {
                command: words(command),
                args: words(args_),
                ..ContainerConfig::default()
            };
            assert_eq!(args(&config, &image).unwrap(), expected);
        }
        let nothing = args(&ContainerConfig::default(), &ImageFacts::default());
        assert_eq!(nothing, Err(SpecError::NoCommand));
    }

    #[test]
    fn later_variables_replace_earlier_ones_in_place() {
        let image = ImageFacts {
            env: words(&["A=1", "PATH=/bin", "B=", "A=2"]),
            ..ImageFacts::default()
        };
        let config = ContainerConfig {
            envs: vec![("B".into(), "x=y".into()), ("C".into(), "3".into())],
            tty: true,
            ..ContainerConfig::default()
        };
        assert_eq!(
            env(&config, &image, "pod-0").unwrap(),
            [
                "HOSTNAME=pod-0",
                "PATH=/bin",
                "TERM=xterm",
                "A=2",
                "B=x=y",
                "C=3"
            ]
        );
    }

    #[test]
    fn an_image_full_of_variables_is_done_at_once() {
        // As many as a config has room for.
        let image = ImageFacts {
            env: (0..400_000).map(|n| format!("{n:x}")).collect(),
            ..ImageFacts::default()
        };
        let begin = std::time::Instant::now();
        let made = env(&ContainerConfig::default(), &image, "pod-0").unwrap();
        assert_eq!(made.len(), 2 + 400_000);
        assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    }

    #[test]
    fn users_are_numbers_in_range_or_names() {
        let table = [
            ("", Some((0, 0))),
            ("1000", Some((1000, 0))),
            ("1000:2000", Some((1000, 2000))),
            ("00", Some((0, 0))),
            ("nobody", Some((0, 0))),
            ("nobody:nogroup", Some((0, 0))),
            ("2147483647", Some((2_147_483_647, 0))),
            ("2147483648", None),
            ("4294967296", None),
            ("99999999999999999999", None),
            ("-1", None),
            ("+0", None),
            (" 0", None),
            (":", None),
            ("0:", Some((0, 0))),
            ("1000:99999999999", None),
            ("a b", None),
        ];
        for (written, expected) in table {
            let image = ImageFacts {
                user: written.into(),
                ..ImageFacts::default()
            };
            let found = user(&ContainerConfig::default(), &image).ok();
            assert_eq!(
                found.map(|user| (user.uid(), user.gid())),
                expected,
                "{written:?}"
            );
        }
    }

    #[test]
    fn ids_of_the_pod_go_before_the_image() {
        let image = ImageFacts {
            user: "app:staff".into(),
            ..ImageFacts::default()
        };
        let mut config = ContainerConfig::default();
        config.security.run_as_group = Some(7);
        let kept = user(&config, &image).unwrap();
        assert_eq!(
            (kept.username().as_deref(), kept.gid()),
            (Some("app:staff"), 7)
        );
        config.security.run_as_user = Some(5);
        let replaced = user(&config, &image).unwrap();
        assert_eq!(
            (replaced.username().as_deref(), replaced.uid()),
            (Some("5"), 5)
        );
        config.security.run_as_user = Some(1 << 31);
        assert!(user(&config, &image).is_err());
    }

    #[test]
    fn working_directory_is_absolute() {
        let image = ImageFacts {
            working_dir: "srv".into(),
            ..ImageFacts::default()
        };
        let mut config = ContainerConfig::default();
        assert_eq!(
            cwd(&config, &ImageFacts::default()).unwrap(),
            PathBuf::from("/")
        );
        assert_eq!(cwd(&config, &image).unwrap(), PathBuf::from("/srv"));
        config.working_dir = "/work".into();
        assert_eq!(cwd(&config, &image).unwrap(), PathBuf::from("/work"));
    }

    #[test]
    fn nul_bytes_are_refused() {
        let config = ContainerConfig {
            command: words(&["a\0b"]),
            ..ContainerConfig::default()
        };
        assert!(args(&config, &ImageFacts::default()).is_err());
    }
}
