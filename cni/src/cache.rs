//! Results of ADD, kept so that DEL can be given what ADD has made.
//!
//! ```text
//! DIR/NETWORK-CONTAINER-IFNAME    JSON: the attachment, the whole network, the result (null before ADD ended)
//! ```
//! The entry is written before the first plugin runs: a crash in the middle of ADD leaves a trace by
//! which DEL undoes it. Temp file and rename; no fsync, the directory dies with the boot.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::attachment::{Attachment, PortMapping};
use crate::spec::{AddResult, Field, NetworkConfig, ParseError};

/// Longest entry that is read; a configuration and a result at their limits fit.
const MAX_ENTRY: u64 = 4 << 20;

/// A cached result could not be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} cached result {}", .path.display())]
pub struct CacheError {
    /// What was tried.
    pub step: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// One attachment that was made, or begun.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) attachment: Attachment,
    pub(crate) network: NetworkConfig,
    /// Plugin types that were served in this process, and have to be undone here.
    pub(crate) in_process: Vec<String>,
    /// None: ADD has not ended.
    pub(crate) result: Option<AddResult>,
}

/// A directory of entries.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, network: &str, id: &str, ifname: &str) -> PathBuf {
        self.dir.join(format!("{network}-{id}-{ifname}"))
    }

    /// Writes an entry in place of an older one.
    pub(crate) fn write(&self, entry: &Entry) -> Result<(), CacheError> {
        let attachment = &entry.attachment;
        let path = self.path(&entry.network.name, &attachment.id, &attachment.ifname);
        let failed = |source| CacheError {
            step: "write",
            path: path.clone(),
            source,
        };
        if !self.dir.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.dir)
                .map_err(failed)?;
        }
        let value = json!({
            "attachment": attachment.to_json(),
            "network": entry.network.to_json(),
            "inProcess": entry.in_process,
            "result": entry.result.as_ref().map(|r| r.to_json(crate::spec::Version::V1_1_0)),
        });
        let draft = self
            .dir
            .join(format!(".tmp-{}-{}", attachment.id, attachment.ifname));
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(true).write(true).mode(0o600);
        options
            .open(&draft)
            .and_then(|mut file| io::Write::write_all(&mut file, value.to_string().as_bytes()))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(failed)
    }

    /// The entry of an attachment. A broken one is reported in the log and counts as none.
    pub(crate) fn read(&self, network: &str, id: &str, ifname: &str) -> Option<Entry> {
        read_entry(&self.path(network, id, ifname))
    }

    /// The entries of a container's interface, on whatever network.
    pub(crate) fn of(&self, id: &str, ifname: &str) -> Vec<Entry> {
        let end = format!("-{id}-{ifname}");
        let mut found = self.named(|name| name.ends_with(&end));
        found.retain(|entry| entry.attachment.id == id && entry.attachment.ifname == ifname);
        found
    }

    /// Every entry.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.named(|_| true)
    }

    fn named(&self, which: impl Fn(&str) -> bool) -> Vec<Entry> {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return Vec::new();
        };
        entries
            .filter_map(Result::ok)
            .filter(|entry| {
                let name = entry.file_name();
                name.to_str()
                    .is_some_and(|name| !name.starts_with(".tmp-") && which(name))
            })
            .filter_map(|entry| read_entry(&entry.path()))
            .collect()
    }

    /// Forgets a container's interface on whatever network, also what cannot be read.
    pub(crate) fn forget(&self, id: &str, ifname: &str) -> Result<(), CacheError> {
        let end = format!("-{id}-{ifname}");
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let network = name.to_str().and_then(|name| name.strip_suffix(&end));
            if let Some(network) = network {
                self.remove(network, id, ifname)?;
            }
        }
        Ok(())
    }

    /// Forgets an attachment; a missing entry is fine.
    pub(crate) fn remove(&self, network: &str, id: &str, ifname: &str) -> Result<(), CacheError> {
        let path = self.path(network, id, ifname);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(CacheError {
                step: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }
}

fn read_entry(path: &Path) -> Option<Entry> {
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => {
            tracing::warn!(path = %path.display(), error = %e, "cached CNI result cannot be read");
            return None;
        }
    };
    match parse_entry(&bytes) {
        Ok(entry) => Some(entry),
        Err(e) => {
            tracing::warn!(path = %path.display(), error = %e, "cached CNI result is broken");
            None
        }
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    io::Read::read_to_end(&mut io::Read::take(file, MAX_ENTRY), &mut bytes)?;
    Ok(bytes)
}

fn parse_entry(bytes: &[u8]) -> Result<Entry, ParseError> {
    let value: Value = serde_json::from_slice(bytes).map_err(ParseError::Json)?;
    let root = Field::root(&value);
    let attachment = root.need("attachment")?;
    let mut args = BTreeMap::new();
    if let Some(field) = attachment.get("args")? {
        for name in field.object()?.keys() {
            args.insert(name.clone(), field.text(name)?);
        }
    }
    let mut port_mappings = Vec::new();
    for field in attachment.list("portMappings")? {
        port_mappings.push(read_port_mapping(&field)?);
    }
    let parsed = Attachment {
        id: attachment.text("containerId")?,
        netns: attachment.text("netns")?.into(),
        ifname: attachment.text("ifName")?,
        args,
        port_mappings,
    };
    if parsed.validate().is_err() {
        return Err(attachment.wrong("a valid attachment"));
    }
    let network = NetworkConfig::from_list(value.get("network").unwrap_or(&Value::Null))?;
    let in_process = root.texts("inProcess")?;
    let result = value.get("result").filter(|v| !v.is_null());
    let result = result.map(AddResult::from_json).transpose()?;
    Ok(Entry {
        attachment: parsed,
        network,
        in_process,
        result,
    })
}

/// Reads one element of `runtimeConfig.portMappings`.
pub(crate) fn read_port_mapping(field: &Field<'_>) -> Result<PortMapping, ParseError> {
    let port = |name| {
        let field = field.need(name)?;
        u16::try_from(field.number()?).map_err(|_| field.wrong("a port from 0 to 65535"))
    };
    let host_ip = match field.get("hostIP")? {
        Some(ip) if !ip.string()?.is_empty() => Some(ip.parse("an IP address")?),
        _ => None,
    };
    Ok(PortMapping {
        protocol: field.text("protocol")?,
        container_port: port("containerPort")?,
        host_port: port("hostPort")?,
        host_ip,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> Entry {
        let text = br#"{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"bridge"}]}"#;
        let mut attachment = Attachment::new("abc", "/run/netns/x").with_pod("ns", "p", "u");
        attachment.port_mappings.push(PortMapping {
            protocol: "tcp".into(),
            container_port: 80,
            host_port: 8080,
            host_ip: Some("127.0.0.1".parse().unwrap()),
        });
        Entry {
            attachment,
            network: NetworkConfig::parse_list(text).unwrap(),
            in_process: vec!["bridge".into()],
            result: Some(AddResult::default()),
        }
    }

    #[test]
    fn what_is_written_is_read_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("deep/er"));
        assert!(cache.all().is_empty());
        let entry = entry();
        cache.write(&entry).unwrap();
        assert_eq!(cache.read("n", "abc", "eth0").unwrap(), entry);
        assert_eq!(cache.all(), vec![entry]);
        cache.remove("n", "abc", "eth0").unwrap();
        cache.remove("n", "abc", "eth0").unwrap();
        assert!(cache.all().is_empty());
    }

    #[test]
    fn broken_entries_count_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().to_owned());
        for text in [
            "",
            "{",
            "[]",
            r#"{"attachment":{"containerId":"../x","ifName":"eth0"}}"#,
        ] {
            fs::write(dir.path().join("n-abc-eth0"), text).unwrap();
            assert_eq!(cache.read("n", "abc", "eth0"), None, "{text}");
        }
        fs::write(dir.path().join("n-other-eth0"), "x").unwrap();
        cache.forget("abc", "eth0").unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse_entry(&bytes);
        }
    }
}
