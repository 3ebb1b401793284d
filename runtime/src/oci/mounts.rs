//! Mounts of the specification → the shim's. Pure, but for what a destination of cgroups needs.
//!
//! Options are those of mount(8) as the specification lists them ("Linux mount options"); what is none of them
//! is for the filesystem. Of a bind mount there is no filesystem to tell, so the rest is left out there.

use std::path::{Path, PathBuf};

use hanok_shim::protocol::{Mount, MountSource};

use super::{OciError, Result};

/// Options by their effect on the mount's attributes: bits set, bits cleared, on the whole tree.
const ATTRIBUTES: [(&str, u64, u64, bool); 30] = [
    ("ro", RDONLY, 0, false),
    ("rro", RDONLY, 0, true),
    ("rw", 0, RDONLY, false),
    ("rrw", 0, RDONLY, true),
    ("nosuid", NOSUID, 0, false),
    ("rnosuid", NOSUID, 0, true),
    ("suid", 0, NOSUID, false),
    ("rsuid", 0, NOSUID, true),
    ("nodev", NODEV, 0, false),
    ("rnodev", NODEV, 0, true),
    ("dev", 0, NODEV, false),
    ("rdev", 0, NODEV, true),
    ("noexec", NOEXEC, 0, false),
    ("rnoexec", NOEXEC, 0, true),
    ("exec", 0, NOEXEC, false),
    ("rexec", 0, NOEXEC, true),
    ("nodiratime", NODIRATIME, 0, false),
    ("diratime", 0, NODIRATIME, false),
    ("rnodiratime", NODIRATIME, 0, true),
    ("rdiratime", 0, NODIRATIME, true),
    ("nosymfollow", NOSYMFOLLOW, 0, false),
    ("symfollow", 0, NOSYMFOLLOW, false),
    ("rnosymfollow", NOSYMFOLLOW, 0, true),
    ("rsymfollow", 0, NOSYMFOLLOW, true),
    // A field, not bits; relatime is the absence of the others.
    ("noatime", NOATIME, ATIME, false),
    ("rnoatime", NOATIME, ATIME, true),
    ("strictatime", STRICTATIME, ATIME, false),
    ("rstrictatime", STRICTATIME, ATIME, true),
    ("relatime", 0, ATIME, false),
    ("rrelatime", 0, ATIME, true),
];

const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
const NOATIME: u64 = libc::MOUNT_ATTR_NOATIME;
const STRICTATIME: u64 = libc::MOUNT_ATTR_STRICTATIME;
const NODIRATIME: u64 = libc::MOUNT_ATTR_NODIRATIME;
const NOSYMFOLLOW: u64 = libc::MOUNT_ATTR_NOSYMFOLLOW;
const ATIME: u64 = libc::MOUNT_ATTR__ATIME;

/// Propagation options.
const PROPAGATION: [(&str, u64); 8] = [
    ("private", 0),
    ("rprivate", 0),
    ("slave", libc::MS_SLAVE),
    ("rslave", libc::MS_SLAVE),
    ("shared", libc::MS_SHARED),
    ("rshared", libc::MS_SHARED),
    ("unbindable", libc::MS_UNBINDABLE),
    ("runbindable", libc::MS_UNBINDABLE),
];

/// Options without an effect here: the kernel's defaults, and what it knows no more.
const IDLE: [&str; 11] = [
    "defaults",
    "async",
    "atime",
    "ratime",
    "norelatime",
    "nostrictatime",
    "nomand",
    "loud",
    "silent",
    "noiversion",
    "nolazytime",
];

/// Every option that is not the filesystem's.
pub(super) fn known_options() -> Vec<&'static str> {
    let attributes = ATTRIBUTES.iter().map(|(name, ..)| *name);
    let propagation = PROPAGATION.iter().map(|(name, _)| *name);
    let mut all: Vec<&str> = attributes
        .chain(propagation)
        .chain(IDLE)
        .chain(["bind", "rbind"])
        .collect();
    all.sort_unstable();
    all
}

/// Propagation of the root filesystem, from `linux.rootfsPropagation`.
pub(super) fn root_propagation(value: Option<&str>) -> Result<u64> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(0);
    };
    let recursive = if value.starts_with('r') {
        libc::MS_REC
    } else {
        0
    };
    let known = PROPAGATION.iter().find(|(name, _)| *name == value);
    let (_, flag) =
        known.ok_or_else(|| OciError::Config(format!("rootfsPropagation {value:?} is unknown")))?;
    let flag = if *flag == 0 { libc::MS_PRIVATE } else { *flag };
    Ok(flag | recursive)
}

/// A mount; `bundle` is what a relative source starts from.
pub(super) fn mount(given: &oci_spec::runtime::Mount, bundle: &Path) -> Result<Mount> {
    let destination = Path::new("/").join(given.destination());
    let name = destination.to_string_lossy().into_owned();
    if given.uid_mappings().is_some() || given.gid_mappings().is_some() {
        return Err(OciError::Config(format!(
            "mount {name}: id mappings are not supported"
        )));
    }
    let mut mount = Mount {
        destination: name.clone(),
        source: MountSource::Cgroup,
        attr_set: 0,
        attr_clear: 0,
        attr_recursive: false,
        propagation: 0,
    };
    let (mut bind, mut recursive, mut copy_up) = (false, false, false);
    let mut rest = Vec::new();
    for option in given.options().iter().flatten() {
        if let Some((_, set, clear, deep)) = ATTRIBUTES.iter().find(|(name, ..)| name == option) {
            // The last word counts.
            mount.attr_set = mount.attr_set & !clear | set;
            mount.attr_clear = mount.attr_clear & !set | clear;
            mount.attr_recursive |= deep;
        } else if let Some((_, value)) = PROPAGATION.iter().find(|(name, _)| name == option) {
            mount.propagation = *value;
        } else if option == "tmpcopyup" {
            copy_up = true;
        } else if option == "bind" || option == "rbind" {
            bind = true;
            recursive = option == "rbind";
        } else if option == "remount" || option.contains("idmap") {
            let message = format!("mount {name}: option {option:?} is not supported");
            return Err(OciError::Config(message));
        } else if !IDLE.contains(&option.as_str()) && !option.is_empty() {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            rest.push((key.to_owned(), value.to_owned()));
        }
    }
    let source = given.source().clone().unwrap_or_default();
    mount.source = match given.typ().as_deref().unwrap_or_default() {
        kind if bind || kind == "bind" => MountSource::Bind {
            path: text(&bundle.join(source)),
            recursive,
        },
        "" | "none" => {
            return Err(OciError::Config(format!("mount {name} has no type")));
        }
        "cgroup" | "cgroup2" => MountSource::Cgroup,
        fstype => {
            if !source.as_os_str().is_empty() {
                rest.push(("source".to_owned(), text(&source)));
            }
            match fstype {
                "tmpfs" if copy_up => MountSource::CopyUp { options: rest },
                _ => MountSource::Filesystem {
                    fstype: fstype.to_owned(),
                    options: rest,
                },
            }
        }
    };
    Ok(mount)
}

/// A view of the cgroups without a cgroup namespace: the container's own directories, one by one, instead of the
/// whole trees of the node.
pub(super) fn own_cgroups(view: &Mount, directories: &[PathBuf]) -> Vec<Mount> {
    let one = |destination: String, source| Mount {
        destination,
        source,
        ..view.clone()
    };
    let bind = |directory: &Path| MountSource::Bind {
        path: text(directory),
        recursive: false,
    };
    if let [only] = directories {
        return vec![one(view.destination.clone(), bind(only))];
    }
    let base = MountSource::Filesystem {
        fstype: "tmpfs".into(),
        options: vec![("mode".into(), "755".into()), ("size".into(), "64k".into())],
    };
    // Directories are made in it.
    let mut base = one(view.destination.clone(), base);
    base.attr_set &= !RDONLY;
    let mut mounts = vec![base];
    for directory in directories {
        // .../HIERARCHY/path; the name of the hierarchy is that of its mount point below /sys/fs/cgroup.
        let below = directory.strip_prefix("/sys/fs/cgroup").ok();
        let name = below.and_then(|below| below.components().next());
        if let Some(name) = name {
            let name = name.as_os_str().to_string_lossy();
            let destination = format!("{}/{name}", view.destination.trim_end_matches('/'));
            mounts.push(one(destination, bind(directory)));
        }
    }
    mounts
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Mount> {
        mount(&serde_json::from_str(text).unwrap(), Path::new("/bundle"))
    }

    #[test]
    fn options_become_attributes_and_the_rest_is_the_filesystems() {
        let mount = parse(
            r#"{"destination":"/t","type":"tmpfs","source":"tmpfs",
            "options":["nosuid","strictatime","mode=755","size=1k","ro","rw","shared","async"]}"#,
        )
        .unwrap();
        assert_eq!(mount.attr_set, NOSUID | STRICTATIME);
        assert_eq!(mount.attr_clear & RDONLY, RDONLY);
        assert_eq!(mount.propagation, libc::MS_SHARED);
        let options = [("mode", "755"), ("size", "1k"), ("source", "tmpfs")];
        let options = options.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
        let fstype = "tmpfs".to_owned();
        assert_eq!(mount.source, MountSource::Filesystem { fstype, options });
    }

    #[test]
    fn a_bind_mount_is_known_by_option_or_type_and_starts_from_the_bundle() {
        for (text, path, recursive) in [
            (
                r#"{"destination":"a","source":"/etc","options":["rbind","mode=1"]}"#,
                "/etc",
                true,
            ),
            (
                r#"{"destination":"/a","source":"etc","type":"none","options":["bind"]}"#,
                "/bundle/etc",
                false,
            ),
            (
                r#"{"destination":"/a","source":"/x","type":"bind"}"#,
                "/x",
                false,
            ),
        ] {
            let mount = parse(text).unwrap();
            assert_eq!(mount.destination, "/a");
            let path = path.to_owned();
            assert_eq!(
                mount.source,
                MountSource::Bind { path, recursive },
                "{text}"
            );
        }
    }

    #[test]
    fn only_a_tmpfs_begins_with_a_copy() {
        let source = |kind: &str| {
            let text = format!(
                r#"{{"destination":"/a","type":"{kind}","options":["tmpcopyup","size=1k"]}}"#
            );
            parse(&text).unwrap().source
        };
        let options = vec![("size".to_owned(), "1k".to_owned())];
        assert_eq!(source("tmpfs"), MountSource::CopyUp { options });
        assert!(matches!(source("mqueue"), MountSource::Filesystem { .. }));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for text in [
            r#"{"destination":"/a","source":"x"}"#,
            r#"{"destination":"/a","type":"bind","source":"/x","options":["idmap"]}"#,
            r#"{"destination":"/a","type":"bind","source":"/x","options":["remount"]}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(root_propagation(Some("odd")).is_err());
        assert_eq!(
            root_propagation(Some("rslave")).unwrap(),
            libc::MS_SLAVE | libc::MS_REC
        );
        assert_eq!(root_propagation(None).unwrap(), 0);
    }

    #[test]
    fn without_a_cgroup_namespace_only_the_own_directories_are_seen() {
        let view =
            parse(r#"{"destination":"/sys/fs/cgroup","type":"cgroup","options":["ro"]}"#).unwrap();
        let directories = ["/sys/fs/cgroup/cpu/x", "/sys/fs/cgroup/memory/x"].map(PathBuf::from);
        let mounts = own_cgroups(&view, &directories);
        let places: Vec<&str> = mounts.iter().map(|m| m.destination.as_str()).collect();
        assert_eq!(
            places,
            [
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/cpu",
                "/sys/fs/cgroup/memory"
            ]
        );
        assert_eq!(
            mounts.iter().map(|m| m.attr_set).collect::<Vec<_>>(),
            [0, RDONLY, RDONLY]
        );
    }
}
