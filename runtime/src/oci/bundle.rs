//! A bundle: `config.json`, read and checked as far as it can be without looking at the machine.
//!
//! Two parts are taken out before the rest is parsed: capabilities, since names that this library does not
//! know must not make the document invalid, and the seccomp profile, for which this crate has a reader.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Linux, LinuxNamespaceType, Process, Spec};
use serde_json::Value;

use super::{OciError, Result, document};
use crate::seccomp::Policy;
use crate::spec::capabilities;

/// Name of the document.
const CONFIG: &str = "config.json";

/// A bundle's configuration.
#[derive(Debug)]
pub(super) struct Bundle {
    /// Its directory, absolute and without links.
    pub(super) dir: PathBuf,
    /// The document's bytes.
    pub(super) bytes: Vec<u8>,
    pub(super) spec: Spec,
    pub(super) capabilities: Sets,
    pub(super) seccomp: Option<Policy>,
}

/// Capability sets by name, as the document has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sets(pub(super) hanok_shim::protocol::Capabilities);

impl Bundle {
    /// Reads the bundle in `dir`.
    pub(super) fn load(dir: &Path) -> Result<Self> {
        let dir = fs::canonicalize(dir).map_err(OciError::io("open bundle", dir))?;
        let path = dir.join(CONFIG);
        // A pipe is not waited for: perhaps nobody writes to it. And a device has no end.
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(&path).map_err(OciError::io("read", &path))?;
        let found = file.metadata().map_err(OciError::io("read", &path))?;
        if !found.is_file() {
            return Err(OciError::Config("it is not a regular file".into()));
        }
        Self::parse(dir, document::read_opened(&path, file)?)
    }

    /// `bytes` are the document.
    pub(super) fn parse(dir: PathBuf, bytes: Vec<u8>) -> Result<Self> {
        let path = dir.join(CONFIG);
        let mut document = document::parse(&path, &bytes)?;
        let taken = take_capabilities(document.get_mut("process"))?;
        let seccomp = document
            .get_mut("linux")
            .and_then(Value::as_object_mut)
            .and_then(|linux| linux.remove("seccomp"))
            .filter(|profile| !profile.is_null());
        let seccomp = seccomp.map(|profile| read_seccomp(&path, &profile));
        let seccomp = seccomp.transpose()?;
        let spec: Spec = document::typed(&path, &document)?;
        let bundle = Self {
            dir,
            bytes,
            spec,
            capabilities: taken,
            seccomp,
        };
        bundle.check()?;
        Ok(bundle)
    }

    /// The Linux part; an empty one when there is none.
    pub(super) fn linux(&self) -> Linux {
        self.spec.linux().clone().unwrap_or_else(empty_linux)
    }

    pub(super) fn process(&self) -> Result<&Process> {
        let process = self.spec.process().as_ref();
        process.ok_or_else(|| OciError::Config("process is missing".into()))
    }

    /// The root filesystem's directory.
    pub(super) fn rootfs(&self) -> Result<PathBuf> {
        let root = self.spec.root().as_ref();
        let root = root.ok_or_else(|| OciError::Config("root is missing".into()))?;
        let path = self.dir.join(root.path());
        fs::canonicalize(&path).map_err(OciError::io("open root filesystem", &path))
    }

    fn check(&self) -> Result<()> {
        let bad = |text: String| Err(OciError::Config(text));
        let version = self.spec.version();
        if !is_supported(version) {
            return bad(format!("ociVersion {version:?} is not 1.x.y"));
        }
        if let Some(process) = self.spec.process() {
            check_process(process)?;
        }
        let linux = self.linux();
        let namespaces = linux.namespaces().clone().unwrap_or_default();
        for (index, namespace) in namespaces.iter().enumerate() {
            if namespaces[..index]
                .iter()
                .any(|n| n.typ() == namespace.typ())
            {
                return bad(format!("namespace {} is there twice", namespace.typ()));
            }
        }
        let own_uts = namespaces
            .iter()
            .any(|n| n.typ() == LinuxNamespaceType::Uts);
        let named = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
        if !own_uts && (named(self.spec.hostname()) || named(self.spec.domainname())) {
            return bad("hostname and domainname need a UTS namespace".into());
        }
        Ok(())
    }
}

/// What is checked of a process, also of one for exec.
pub(super) fn check_process(process: &Process) -> Result<()> {
    let bad = |text: String| Err(OciError::Config(text));
    if !process.cwd().is_absolute() {
        return bad(format!("cwd {:?} is not an absolute path", process.cwd()));
    }
    if process.args().as_ref().is_none_or(Vec::is_empty) {
        return bad("process.args is empty".into());
    }
    if process.scheduler().is_some() {
        return bad("process.scheduler is not supported".into());
    }
    if process.io_priority().is_some() {
        return bad("process.ioPriority is not supported".into());
    }
    Ok(())
}

/// `1.y.z` with an optional suffix.
fn is_supported(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<Option<u32>> = core.split('.').map(|part| part.parse().ok()).collect();
    matches!(numbers.as_slice(), [Some(1), Some(_), Some(_)])
}

fn empty_linux() -> Linux {
    let mut linux = Linux::default();
    linux
        .set_namespaces(None)
        .set_resources(None)
        .set_masked_paths(None)
        .set_readonly_paths(None);
    linux
}

/// Removes `capabilities` from a process and reads it. A name that no kernel interface stands for is left
/// out, as the specification wants it since 1.1.
pub(super) fn take_capabilities(process: Option<&mut Value>) -> Result<Sets> {
    let taken = process
        .and_then(Value::as_object_mut)
        .and_then(|process| process.remove("capabilities"));
    let Some(taken) = taken.filter(|taken| !taken.is_null()) else {
        return Ok(Sets::default());
    };
    let bad = |field: &str, value: &Value, wanted: &str| {
        OciError::Config(format!(
            "process.capabilities{field} {value} is no {wanted}"
        ))
    };
    if !taken.is_object() {
        return Err(bad("", &taken, "object"));
    }
    let set = |name: &str| match taken.get(name) {
        None | Some(Value::Null) => Ok(0),
        Some(Value::Array(names)) => names.iter().try_fold(0, |all, capability| {
            let known = capability.as_str().map(capabilities::bit);
            let known = known.ok_or_else(|| bad(&format!(".{name}"), capability, "name"))?;
            Ok(all | known.unwrap_or(0))
        }),
        Some(other) => Err(bad(&format!(".{name}"), other, "list of names")),
    };
    Ok(Sets(hanok_shim::protocol::Capabilities {
        bounding: set("bounding")?,
        effective: set("effective")?,
        permitted: set("permitted")?,
        inheritable: set("inheritable")?,
        ambient: set("ambient")?,
    }))
}

fn read_seccomp(path: &Path, profile: &Value) -> Result<Policy> {
    let listener = profile.get("listenerPath").and_then(Value::as_str);
    if listener.is_some_and(|path| !path.is_empty()) {
        return Err(OciError::Config(
            "seccomp.listenerPath is not supported".into(),
        ));
    }
    document::typed(path, profile).map_err(|error| match error {
        OciError::Field {
            path,
            field,
            source,
        } => OciError::Field {
            path,
            field: format!("{field} of linux.seccomp"),
            source,
        },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Bundle> {
        Bundle::parse("/b".into(), text.as_bytes().to_vec())
    }

    #[test]
    fn versions_are_one_dot_something() {
        for version in ["1.0.2", "1.0.2-dev", "1.2.0", "1.0.0-rc5+x"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["", "invalid", "2.0.0", "1", "1.0", "1.0.0.0", "0.9.0"] {
            assert!(!is_supported(version), "{version}");
        }
    }

    #[test]
    fn unknown_capabilities_and_properties_do_no_harm() {
        let bundle = parse(
            r#"{"ociVersion":"1.0.2","unknown":1,"root":{"path":"r"},"process":{"cwd":"/","args":["a"],"user":{},
            "capabilities":{"bounding":["CAP_CHOWN","CAP_TEST"],"effective":["CAP_KILL"]}},
            "linux":{"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"}}}"#,
        )
        .unwrap();
        assert_eq!(bundle.capabilities.0.bounding, 1);
        assert_eq!(bundle.capabilities.0.effective, 1 << 5);
        assert_eq!(bundle.seccomp.unwrap().default_action, "SCMP_ACT_ALLOW");
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for text in [
            "",
            "{}",
            r#"{"ociVersion":"x"}"#,
            r#"{"ociVersion":"1.0.2","process":{"user":{},"cwd":"rel","args":["a"]}}"#,
            r#"{"ociVersion":"1.0.2","process":{"user":{},"cwd":"/","args":[]}}"#,
            r#"{"ociVersion":"1.0.2","hostname":"h","linux":{"namespaces":[]}}"#,
            r#"{"ociVersion":"1.0.2","linux":{"namespaces":[{"type":"pid"},{"type":"pid"}]}}"#,
            r#"{"ociVersion":"1.0.2","linux":{"seccomp":{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/x"}}}"#,
            r#"{"ociVersion":"1.0.2","process":{"user":{},"cwd":"/","args":["a"],"rlimits":[{"type":"RLIMIT_TEST","hard":1,"soft":1}]}}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn capabilities_of_another_type_are_not_none() {
        for (given, named) in [
            (r#""CAP_CHOWN""#, "process.capabilities \"CAP_CHOWN\""),
            (r#"{"bounding":"CAP_CHOWN"}"#, ".bounding \"CAP_CHOWN\""),
            (r#"{"ambient":["CAP_CHOWN",7]}"#, ".ambient 7"),
        ] {
            let text = format!(
                r#"{{"ociVersion":"1.0.2","process":{{"cwd":"/","args":["a"],"user":{{}},"capabilities":{given}}}}}"#
            );
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let null = r#"{"ociVersion":"1.0.2","process":{"cwd":"/","args":["a"],"user":{},"capabilities":null}}"#;
        assert_eq!(parse(null).unwrap().capabilities, Sets::default());
    }

    #[test]
    fn a_configuration_is_a_file() {
        for target in ["/dev/zero", "/", "pipe"] {
            let dir = tempfile::tempdir().unwrap();
            nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
            std::os::unix::fs::symlink(target, dir.path().join(CONFIG)).unwrap();
            let error = Bundle::load(dir.path()).unwrap_err();
            assert!(matches!(error, OciError::Config(_)), "{target}: {error:?}");
        }
    }
}
