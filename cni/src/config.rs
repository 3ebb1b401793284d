//! Where a network's configuration comes from: the directory that all runtimes read, or none at all.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::masquerade::ports_table_name;
use crate::spec::{MAX_CONFIG, NetworkConfig, ParseError};

/// A network to attach containers to, and the file it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file; none for [`Config::built_in`].
    pub file: Option<PathBuf>,
    /// The network.
    pub network: NetworkConfig,
}

/// The network of a node that needs no file: `bridge` with `host-local`, and `portmap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltIn {
    /// Name of the network; part of the paths of its leases.
    pub name: String,
    /// Name of the bridge.
    pub bridge: String,
    /// The node's pod CIDRs, one of each family at most. The first address of each is the bridge's.
    pub pod_cidrs: Vec<IpNet>,
    /// MTU of the pods' interfaces; the kernel's 1500 when absent.
    pub mtu: Option<u32>,
    /// Whether what leaves the node gets the node's address.
    pub masquerade: bool,
    /// Destinations that see the pods' own addresses: the cluster's CIDR, other nodes.
    pub non_masquerade_cidrs: Vec<IpNet>,
    /// Whether a pod reaches itself through its Service.
    pub hairpin: bool,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The directory has no configuration, or does not exist.
    #[error("no networks found in {}", .dir.display())]
    None {
        /// The directory.
        dir: PathBuf,
    },
    /// A directory or file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not a CNI configuration.
    #[error("{} is not a CNI configuration", .path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Field and value.
        #[source]
        source: ParseError,
    },
    /// The built-in network makes no sense.
    #[error("the built-in network has {field} {value}, expected {expected}")]
    BuiltIn {
        /// Which field of [`BuiltIn`].
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl BuiltIn {
    /// The network `hanok` with these pod CIDRs on this bridge; everything else as most nodes want it.
    #[must_use]
    pub fn new(bridge: impl Into<String>, pod_cidrs: Vec<IpNet>) -> Self {
        Self {
            name: "hanok".into(),
            bridge: bridge.into(),
            pod_cidrs,
            mtu: None,
            masquerade: true,
            non_masquerade_cidrs: Vec::new(),
            hairpin: true,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |field, value: String, expected| {
            Err(ConfigError::BuiltIn {
                field,
                value,
                expected,
            })
        };
        if self.bridge.is_empty() || self.bridge.len() > 15 || self.bridge.contains(['/', ':', ' '])
        {
            return wrong(
                "bridge",
                self.bridge.clone(),
                "an interface name of 1 to 15 characters",
            );
        }
        let families: Vec<_> = self.pod_cidrs.iter().map(|c| c.addr().is_ipv4()).collect();
        if families.is_empty()
            || families.len() > 2
            || families == [true, true]
            || families == [false, false]
        {
            let value = format!("{:?}", self.pod_cidrs);
            return wrong(
                "pod_cidrs",
                value,
                "one CIDR of each family at most, and at least one",
            );
        }
        let small = |c: &&IpNet| c.max_prefix_len() - c.prefix_len() < 2;
        if let Some(cidr) = self.pod_cidrs.iter().find(small) {
            return wrong("pod_cidrs", cidr.to_string(), "at least four addresses");
        }
        Ok(())
    }

    fn to_list(&self) -> Value {
        let ranges: Vec<_> = self
            .pod_cidrs
            .iter()
            .map(|c| json!([{"subnet": c.trunc().to_string()}]))
            .collect();
        let routes: Vec<_> = self
            .pod_cidrs
            .iter()
            .map(|c| json!({"dst": if c.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" }}))
            .collect();
        let mut bridge = json!({
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": true,
            "ipMasq": self.masquerade,
            "nonMasqueradeCIDRs": self.non_masquerade_cidrs,
            "hairpinMode": self.hairpin,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
        });
        let ports = json!({
            "type": "portmap",
            "capabilities": {"portMappings": true},
            "table": ports_table_name(&self.bridge),
        });
        if let Some(mtu) = self.mtu {
            bridge["mtu"] = mtu.into();
        }
        json!({
            "cniVersion": "1.1.0",
            "name": self.name,
            "plugins": [bridge, ports],
        })
    }
}

impl Config {
    /// Reads the network of a directory: the first file by name that ends in `.conflist`, `.conf` or `.json`.
    ///
    /// A first file that is broken is an error and not skipped: the next one would be another network.
    pub fn load(dir: &Path) -> Result<Self, ConfigError> {
        let read = |path: &Path, source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(ConfigError::None {
                    dir: dir.to_owned(),
                });
            }
            Err(e) => return Err(read(dir, e)),
        };
        let mut first: Option<PathBuf> = None;
        for entry in entries {
            let path = entry.map_err(|e| read(dir, e))?.path();
            let known = path
                .extension()
                .and_then(|e| e.to_str())
                .is_some_and(|e| matches!(e, "conflist" | "conf" | "json"));
            if known && path.is_file() && first.as_ref().is_none_or(|f| path < *f) {
                first = Some(path);
            }
        }
        first.map_or_else(
            || {
                Err(ConfigError::None {
                    dir: dir.to_owned(),
                })
            },
            |f| Self::read(&f),
        )
    }

    /// Reads one file; the name's end tells a list from a single plugin.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let bytes = read_bounded(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let list = path.extension().is_some_and(|e| e == "conflist");
        let parsed = if list {
            NetworkConfig::parse_list(&bytes)
        } else {
            NetworkConfig::parse_single(&bytes)
        };
        match parsed {
            Ok(network) => Ok(Self {
                file: Some(path.to_owned()),
                network,
            }),
            Err(source) => Err(ConfigError::Parse {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The network of a node without any file.
    pub fn built_in(built_in: &BuiltIn) -> Result<Self, ConfigError> {
        built_in.validate()?;
        NetworkConfig::from_list(&built_in.to_list())
            .map(|network| Self {
                file: None,
                network,
            })
            .map_err(|e| ConfigError::BuiltIn {
                field: "name",
                value: format!("{:?} ({e})", built_in.name),
                expected: "letters, digits, '.', '_' and '-'",
            })
    }
}

/// Reads one byte more than a configuration may have, so that the parser sees it is too long.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_CONFIG)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    std::fs::File::open(path)?
        .take(limit)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|c| c.parse().unwrap()).collect()
    }

    #[test]
    fn first_file_by_name_is_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert!(matches!(
            Config::load(dir.path()),
            Err(ConfigError::None { .. })
        ));
        write("00-readme.txt", "nothing");
        write("20-b.conflist", r#"{"name":"b","plugins":[{"type":"x"}]}"#);
        write("10-a.conf", r#"{"name":"a","type":"y"}"#);
        assert_eq!(Config::load(dir.path()).unwrap().network.name, "a");
        write("05-broken.json", r#"{"name":"c","type":"../y"}"#);
        let error = Config::load(dir.path()).unwrap_err();
        assert!(error.to_string().contains("05-broken.json"), "{error}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(r#""type" is "../y""#), "{cause}");
    }

    #[test]
    fn missing_directory_means_no_network() {
        let error = Config::load(Path::new("/nonexistent-hanok")).unwrap_err();
        assert!(matches!(error, ConfigError::None { .. }), "{error}");
    }

    #[test]
    fn built_in_network_is_a_bridge_with_both_families() {
        let built_in = BuiltIn::new("br-x", cidrs(&["10.1.0.0/24", "fd00:1::/64"]));
        let config = Config::built_in(&built_in).unwrap();
        assert_eq!(config.network.plugins[0].kind, "bridge");
        assert_eq!(config.network.plugins[0].ipam_kind(), Some("host-local"));
        assert_eq!(config.network.plugins[1].kind, "portmap");
        assert!(
            config.network.plugins[1]
                .capabilities
                .contains("portMappings")
        );
    }

    #[test]
    fn built_in_network_refuses_what_cannot_work() {
        let table = [
            BuiltIn::new("", cidrs(&["10.1.0.0/24"])),
            BuiltIn::new("much-too-long-name", cidrs(&["10.1.0.0/24"])),
            BuiltIn::new("b", vec![]),
            BuiltIn::new("b", cidrs(&["10.1.0.0/24", "10.2.0.0/24"])),
            BuiltIn::new("b", cidrs(&["10.1.0.0/31"])),
            BuiltIn {
                name: "../x".into(),
                ..BuiltIn::new("b", cidrs(&["10.1.0.0/24"]))
            },
        ];
        for built_in in table {
            assert!(Config::built_in(&built_in).is_err(), "{built_in:?}");
        }
    }
}
