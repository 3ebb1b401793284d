//! Cgroup paths → systemd's units and where they are. Pure.
//!
//! ```text
//!   kubepods/burstable/podA-B          kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podA_B.slice
//!   kubepods/burstable/podA-B/<id>     … /cri-containerd-<id>.scope
//! ```
//! A slice's name tells those above it, each after a dash; so a dash in a name becomes an underscore, as the kubelet
//! writes it (systemd.slice(5), systemd.unit(5)).

use std::path::{Path, PathBuf};

use crate::service::is_id;

/// What a container's scope begins with. Monitoring agents, cAdvisor among them, find containers in
/// `/proc/<pid>/cgroup` by this prefix, and know those of few runtimes.
const PREFIX: &str = "cri-containerd";

/// The slice of scopes for which none is named.
const SYSTEM_SLICE: &str = "system.slice";

/// A cgroup that systemd keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// `NAME.slice` or `NAME.scope`.
    pub(crate) name: String,
    /// The slice that it is in; that of a slice follows from its name.
    pub(crate) slice: String,
    /// Its directory below the root of each hierarchy.
    pub(crate) directory: PathBuf,
}

impl Unit {
    fn slice(name: String) -> Self {
        let directory = expand(&name);
        Self {
            slice: String::new(),
            name,
            directory,
        }
    }

    fn scope(name: String, slice: String) -> Self {
        let directory = expand(&slice).join(&name);
        Self {
            name,
            slice,
            directory,
        }
    }

    /// The unit of a path below the runtime's root, both as the cgroupfs driver takes them.
    pub(crate) fn of_path(root: &str, path: &Path) -> Self {
        let mut names: Vec<&str> = root.split('/').filter(|name| !name.is_empty()).collect();
        names.extend(path.iter().filter_map(|name| name.to_str()));
        let id = names.pop_if(|name| is_id(name));
        let slice = match names.is_empty() {
            true => SYSTEM_SLICE.to_owned(),
            false => {
                let escaped: Vec<String> = names.into_iter().map(escape).collect();
                format!("{}.slice", escaped.join("-"))
            }
        };
        match id {
            Some(id) => Self::scope(format!("{PREFIX}-{id}.scope"), slice),
            None => Self::slice(slice),
        }
    }

    /// The unit of an OCI bundle's `cgroupsPath`, `slice:prefix:name`; without one, a scope named by the id in the
    /// system's slice. None when it is of another form.
    pub(crate) fn of_bundle(path: &str, id: &str) -> Option<Self> {
        if path.is_empty() {
            return Some(Self::scope(
                format!("hanok-{id}.scope"),
                SYSTEM_SLICE.into(),
            ));
        }
        let mut parts = path.split(':');
        let (slice, prefix, name) = (parts.next()?, parts.next()?, parts.next()?);
        let known = |text: &str| text.chars().all(is_allowed);
        if parts.next().is_some()
            || name.is_empty()
            || ![slice, prefix, name].iter().all(|p| known(p))
        {
            return None;
        }
        let slice = match slice {
            "" => SYSTEM_SLICE,
            slice => slice,
        };
        let parents = slice.strip_suffix(".slice")?;
        let nameable = |one: &str| !one.is_empty() && !one.starts_with('.');
        if parents != "-" && !parents.split('-').all(nameable) {
            return None;
        }
        let name = match prefix {
            "" => format!("{name}.scope"),
            prefix => format!("{prefix}-{name}.scope"),
        };
        (!name.starts_with('.')).then(|| Self::scope(name, slice.to_owned()))
    }
}

/// What the last part of a path was, from the directory of its unit; none for what is not a container's.
pub(crate) fn child(directory: &str) -> Option<&str> {
    directory
        .strip_prefix(PREFIX)?
        .strip_prefix('-')?
        .strip_suffix(".scope")
}

/// A slice is in the directory of the one that its name begins with, and so on.
fn expand(slice: &str) -> PathBuf {
    let name = slice.strip_suffix(".slice").unwrap_or(slice);
    if name == "-" {
        return PathBuf::new();
    }
    let ends = name.match_indices('-').map(|(end, _)| end);
    ends.chain([name.len()])
        .map(|end| format!("{}.slice", &name[..end]))
        .collect()
}

/// A part of a slice's name. What no unit's name can hold is written as systemd-escape(1) does.
fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match char::from(byte) {
            '-' => escaped.push('_'),
            letter if is_allowed(letter) && letter != '\\' => escaped.push(letter),
            _ => escaped += &format!("\\x{byte:02x}"),
        }
    }
    escaped
}

/// Letters of a unit's name.
fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ":-_.\\".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_path(root: &str, path: &str) -> (String, String) {
        let unit = Unit::of_path(root, Path::new(path));
        (unit.name, unit.directory.display().to_string())
    }

    #[test]
    fn slices_are_those_of_the_kubelet() {
        let pod = "kubepods/besteffort/pod12-ab-34";
        for (path, directory) in [
            ("kubepods", "kubepods.slice"),
            (
                "kubepods/burstable",
                "kubepods.slice/kubepods-burstable.slice",
            ),
            ("kubepods/podx", "kubepods.slice/kubepods-podx.slice"),
            (
                pod,
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12_ab_34.slice",
            ),
        ] {
            for root in ["", "/"] {
                let (name, found) = of_path(root, path);
                assert_eq!(found, directory);
                assert!(directory.ends_with(&name), "{name}");
            }
        }
        assert_eq!(
            of_path("/lab/n-1", "kubepods").1,
            "lab.slice/lab-n_1.slice/lab-n_1-kubepods.slice"
        );
        assert_eq!(of_path("", "a b\\c").0, "a\\x20b\\x5cc.slice");
    }

    #[test]
    fn container_is_a_scope_in_the_slice_of_its_pod() {
        let id = "ab".repeat(32);
        let unit = Unit::of_path("", Path::new(&format!("kubepods/podx/{id}")));
        assert_eq!(unit.name, format!("cri-containerd-{id}.scope"));
        assert_eq!(unit.slice, "kubepods-podx.slice");
        let directory = unit.directory.file_name().and_then(|name| name.to_str());
        assert_eq!(directory.and_then(child), Some(id.as_str()));
        assert_eq!(child("kubepods-podx.slice"), None);
        let alone = Unit::of_path("/", Path::new(&id));
        assert_eq!(alone.slice, "system.slice");
    }

    #[test]
    fn bundles_name_slice_prefix_and_name() {
        let of = |path| {
            let unit = Unit::of_bundle(path, "c1")?;
            Some((unit.name, unit.directory.display().to_string()))
        };
        let some = |name: &str, directory: &str| Some((name.to_owned(), directory.to_owned()));
        assert_eq!(
            of(""),
            some("hanok-c1.scope", "system.slice/hanok-c1.scope")
        );
        assert_eq!(
            of("machine.slice:libpod:abc"),
            some("libpod-abc.scope", "machine.slice/libpod-abc.scope")
        );
        assert_eq!(
            of("a-b.slice::abc"),
            some("abc.scope", "a.slice/a-b.slice/abc.scope")
        );
        assert_eq!(of(":p:n"), some("p-n.scope", "system.slice/p-n.scope"));
        assert_eq!(of("-.slice:p:n"), some("p-n.scope", "p-n.scope"));
        for bad in [
            "/kubepods/x",
            "a.slice",
            "a.slice:b",
            "a.slice:b:c:d",
            "a:b:c",
            "a.slice:b:",
            "../x.slice:b:c",
            "a--b.slice:b:c",
            "-a.slice:b:c",
            ".slice:b:c",
            "a.slice:b/..:c",
            "a.slice::..",
            "..-x.slice:b:c",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
