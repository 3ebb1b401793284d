//! SELinux labels of containers: of their processes, and of the files that are theirs.
//!
//! The node's policy says which types they have (`lxc_contexts`); what a pod's options say goes before it. Each sandbox
//! has two categories of its own, so that the containers of a pod share files and no other pod reads them.

mod relabel;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::api::SelinuxOptions;

pub(crate) use relabel::relabel;

/// The kernel's side of it.
const SELINUXFS: &str = "/sys/fs/selinux";

/// Where a distribution says which labels containers have, whatever the policy.
const CONTEXTS: &str = "/usr/share/containers/selinux/contexts";

/// Says which policy is loaded, whose own contexts are the next best.
const CONFIG: &str = "/etc/selinux/config";

/// Labels of a container where the policy does not say.
const USUAL: (&str, &str) = (
    "system_u:system_r:container_t:s0",
    "system_u:object_r:container_file_t:s0",
);

/// How many categories policies have.
const CATEGORIES: u32 = 1024;

/// Whether the kernel enforces labels. Without a policy everything is `kernel`, and any label is taken and means nothing.
pub fn is_enabled() -> bool {
    let own = fs::read("/proc/self/attr/current").unwrap_or_default();
    let own = own.strip_suffix(b"\0").unwrap_or(&own);
    Path::new(SELINUXFS).join("enforce").exists() && own != b"kernel"
}

/// Why a container cannot have its labels. Display is for the pod's event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelinuxError {
    /// The pod's level is none.
    #[error("the format of 'level' {0:?} is not correct")]
    Level(String),
    /// Another of the pod's options would be more than one part of a label.
    #[error("the format of '{0}' {1:?} is not correct")]
    Part(&'static str, String),
    /// The policy does not know it.
    #[error("the node's policy does not have the SELinux label {0:?}")]
    Unknown(String, #[source] io::Error),
}

/// What a container is labelled with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Its processes.
    pub process: Option<String>,
    /// What is mounted for it, and its volumes.
    pub mount: Option<String>,
}

/// `user:role:type:level`; policies without levels leave the last out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Context {
    user: String,
    role: String,
    type_: String,
    level: Option<String>,
}

impl Context {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        Some(Context {
            user: parts.next()?,
            role: parts.next()?,
            type_: parts.next()?,
            level: parts.next(),
        })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context {
            user,
            role,
            type_,
            level,
        } = self;
        write!(f, "{user}:{role}:{type_}")?;
        level.iter().try_for_each(|level| write!(f, ":{level}"))
    }
}

/// What this node's policy says of containers.
#[derive(Debug)]
pub(crate) struct Selinux {
    /// Labels of process and files; without them only a pod that asks gets any.
    containers: Option<(Context, Context)>,
}

impl Selinux {
    /// Looks at the kernel and for the policy's files; none where it is not enabled.
    pub(crate) fn look() -> Option<Self> {
        if !is_enabled() {
            return None;
        }
        let config = fs::read_to_string(CONFIG).unwrap_or_default();
        let policy = policy(&config).map(|name| {
            PathBuf::from("/etc/selinux")
                .join(name)
                .join("contexts/lxc_contexts")
        });
        let text = fs::read_to_string(CONTEXTS)
            .ok()
            .or_else(|| fs::read_to_string(policy?).ok());
        Some(Selinux {
            containers: text.as_deref().and_then(contexts),
        })
    }

    /// Labels of a container, which the policy has. `level` is its sandbox's.
    pub(crate) fn labels(
        &self,
        options: Option<&SelinuxOptions>,
        level: Option<&str>,
        privileged: bool,
    ) -> Result<Labels, SelinuxError> {
        let labels = self.decide(options, level, privileged)?;
        for label in labels.process.iter().chain(&labels.mount) {
            let known = fs::write(Path::new(SELINUXFS).join("context"), label);
            known.map_err(|error| SelinuxError::Unknown(label.clone(), error))?;
        }
        Ok(labels)
    }

    /// The rules are containerd's: the level and the user are also the files'; a privileged process keeps the label that
    /// the policy gives to it.
    fn decide(
        &self,
        options: Option<&SelinuxOptions>,
        level: Option<&str>,
        privileged: bool,
    ) -> Result<Labels, SelinuxError> {
        let options = options.filter(|options| **options != SelinuxOptions::default());
        let (mut process, mut file) = match &self.containers {
            Some(both) => both.clone(),
            None if options.is_none() => return Ok(Labels::default()),
            None => match (Context::parse(USUAL.0), Context::parse(USUAL.1)) {
                (Some(process), Some(file)) => (process, file),
                _ => return Ok(Labels::default()),
            },
        };
        if process.level.is_some()
            && let Some(level) = level
        {
            process.level = Some(level.to_owned());
            file.level = Some(level.to_owned());
        }
        if let Some(options) = options {
            check(options)?;
            let given = |part: &String| Some(part.clone()).filter(|part| !part.is_empty());
            if let Some(user) = given(&options.user) {
                (process.user, file.user) = (user.clone(), user);
            }
            if let Some(level) = given(&options.level) {
                (process.level, file.level) = (Some(level.clone()), Some(level));
            }
            process.role = given(&options.role).unwrap_or(process.role);
            process.type_ = given(&options.type_).unwrap_or(process.type_);
        }
        Ok(Labels {
            process: (!privileged).then(|| process.to_string()),
            mount: Some(file.to_string()),
        })
    }
}

/// A level of two categories that is not `taken`. `id` is random, and where the search begins.
pub(crate) fn new_level(id: &str, taken: impl Fn(&str) -> bool) -> String {
    let pairs = CATEGORIES * (CATEGORIES - 1) / 2;
    let digits = id.get(..8).unwrap_or_default();
    let first = u32::from_str_radix(digits, 16).unwrap_or_default() % pairs;
    let mut levels = (first..pairs).chain(0..first).map(nth_level);
    let free = levels.find(|level| !taken(level));
    // With more sandboxes than pairs, two share one.
    free.unwrap_or_else(|| nth_level(first))
}

/// The pairs in order: (0,1), (0,2), (1,2), (0,3), ...
fn nth_level(n: u32) -> String {
    let mut higher = 1;
    let mut left = n;
    while left >= higher {
        left -= higher;
        higher += 1;
    }
    format!("s0:c{left},c{higher}")
}

/// The name of the policy in /etc/selinux/config.
fn policy(config: &str) -> Option<&str> {
    let lines = config.lines().map(str::trim);
    let mut values = lines.filter_map(|line| line.strip_prefix("SELINUXTYPE=").map(str::trim));
    values.rfind(|name| !name.is_empty() && !name.contains('/') && *name != "..")
}

/// `process` and `file` of lxc_contexts, lines of `key = "label"`.
fn contexts(text: &str) -> Option<(Context, Context)> {
    let find = |wanted: &str| {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let mut values = pairs.filter(|(key, _)| key.trim() == wanted);
        let (_, value) = values.next()?;
        Context::parse(value.trim().trim_matches('"'))
    };
    Some((find("process")?, find("file")?))
}

/// What is written into a label is one part of it.
fn check(options: &SelinuxOptions) -> Result<(), SelinuxError> {
    let plain = |part: &str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
    };
    for (name, part) in [
        ("user", &options.user),
        ("role", &options.role),
        ("type", &options.type_),
    ] {
        if !plain(part) {
            return Err(SelinuxError::Part(name, part.clone()));
        }
    }
    match options.level.is_empty() || is_level(&options.level) {
        true => Ok(()),
        false => Err(SelinuxError::Level(options.level.clone())),
    }
}

/// `s0`, `s0-s1`, `s0:c1,c3.c5`, as containerd takes it.
fn is_level(level: &str) -> bool {
    let digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let numbered = |text: &str, letter: char, most| {
        text.strip_prefix(letter)
            .is_some_and(|number| digits(number, most))
    };
    let (sensitivity, categories) = match level.split_once(':') {
        Some((sensitivity, categories)) => (sensitivity, Some(categories)),
        None => (level, None),
    };
    let (low, high) = sensitivity.split_once('-').unwrap_or((sensitivity, "s0"));
    let of_categories = |list: &str| {
        list.split(',').all(|range| {
            let (first, last) = range.split_once('.').unwrap_or((range, "c0"));
            numbered(first, 'c', 4) && numbered(last, 'c', 4)
        })
    };
    numbered(low, 's', 1) && numbered(high, 's', 1) && categories.is_none_or(of_categories)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LXC: &str = "# comment\nprocess = \"system_u:system_r:container_t:s0\"\n\
        content = \"x\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";

    fn options(user: &str, role: &str, type_: &str, level: &str) -> SelinuxOptions {
        let [user, role, type_, level] = [user, role, type_, level].map(str::to_owned);
        SelinuxOptions {
            user,
            role,
            type_,
            level,
        }
    }

    fn both(process: &str, mount: &str) -> Labels {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Labels {
            process: some(process),
            mount: some(mount),
        }
    }

    #[test]
    fn a_container_has_the_policys_labels_with_its_sandboxs_level_and_its_pods_options() {
        let policy = Selinux {
            containers: contexts(LXC),
        };
        let bare = Selinux { containers: None };
        let level = Some("s0:c1,c2");
        let decide = |policy: &Selinux, options: Option<&SelinuxOptions>, privileged| {
            policy.decide(options, level, privileged).unwrap()
        };
        let process = "system_u:system_r:container_t:s0:c1,c2";
        let file = "system_u:object_r:container_file_t:s0:c1,c2";
        assert_eq!(decide(&policy, None, false), both(process, file));
        assert_eq!(decide(&policy, None, true), both("", file));
        let empty = options("", "", "", "");
        assert_eq!(decide(&policy, Some(&empty), false), both(process, file));
        assert_eq!(decide(&bare, Some(&empty), false), Labels::default());
        let type_ = options("", "", "other_t", "");
        let other = "system_u:system_r:other_t:s0:c1,c2";
        assert_eq!(decide(&policy, Some(&type_), false), both(other, file));
        assert_eq!(decide(&bare, Some(&type_), false), both(other, file));
        let all = options("u", "r", "t", "s0:c7");
        let want = both("u:r:t:s0:c7", "u:object_r:container_file_t:s0:c7");
        assert_eq!(decide(&policy, Some(&all), false), want);
    }

    #[test]
    fn a_policy_without_levels_gets_none() {
        let text = LXC.replace(":s0", "");
        let policy = Selinux {
            containers: contexts(&text),
        };
        let labels = policy.decide(None, Some("s0:c1,c2"), false).unwrap();
        let want = both(
            "system_u:system_r:container_t",
            "system_u:object_r:container_file_t",
        );
        assert_eq!(labels, want);
    }

    #[test]
    fn an_option_is_one_part_of_a_label() {
        for level in [
            "s0",
            "s0-s1",
            "s0:c1",
            "s0:c1,c1023",
            "s0:c0.c1023",
            "s1-s2:c1.c3,c5",
        ] {
            assert!(is_level(level), "{level}");
        }
        for level in [
            "",
            "s",
            "s10",
            "c1",
            "s0:",
            "s0:c",
            "s0:c12345",
            "s0:c1,",
            "s0 ",
            "s0:c1:c2",
            "s0\n",
            "s0--s1",
        ] {
            assert!(!is_level(level), "{level:?}");
        }
        for bad in ["a:b", "a b", "a\n", "ä", "a\0"] {
            for options in [
                options(bad, "", "", ""),
                options("", bad, "", ""),
                options("", "", bad, ""),
                options("", "", "", bad),
            ] {
                assert!(check(&options).is_err(), "{options:?}");
            }
        }
    }

    #[test]
    fn no_two_sandboxes_have_the_same_categories() {
        assert_eq!(nth_level(0), "s0:c0,c1");
        assert_eq!(nth_level(2), "s0:c1,c2");
        assert_eq!(nth_level(523_775), "s0:c1022,c1023");
        let mut taken = std::collections::HashSet::new();
        for _ in 0..100 {
            let level = new_level("0007fdfe", |level| taken.contains(level));
            assert!(is_level(&level) && taken.insert(level));
        }
        assert!(is_level(&new_level("", |_| true)));
    }

    #[test]
    fn the_policys_name_is_a_name() {
        let config = "SELINUX=enforcing\n# SELINUXTYPE=x\nSELINUXTYPE= targeted \n";
        assert_eq!(policy(config), Some("targeted"));
        for config in ["", "SELINUXTYPE=", "SELINUXTYPE=../x", "SELINUXTYPE=.."] {
            assert_eq!(policy(config), None, "{config}");
        }
    }
}
