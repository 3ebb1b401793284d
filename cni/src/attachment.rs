//! An attachment: one container's interface on a network, as CNI identifies it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::spec::is_valid_name;

/// Longest interface name the kernel takes (`IFNAMSIZ` without the terminating zero).
const MAX_IFNAME: usize = 15;

/// A container, its network namespace, and what plugins shall know of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attachment {
    /// Container id (for a pod, its sandbox id): letters, digits, '.', '_' and '-'.
    pub id: String,
    /// Path of the network namespace. DEL works when nothing is there any more.
    pub netns: PathBuf,
    /// Name of the interface inside, `eth0` as a rule.
    pub ifname: String,
    /// `CNI_ARGS`, names and values without ';' and '='.
    pub args: BTreeMap<String, String>,
    /// Host ports, for plugins with the capability `portMappings`.
    pub port_mappings: Vec<PortMapping>,
}

/// A port of the host that leads into the container (capability `portMappings`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// "tcp", "udp" or "sctp".
    pub protocol: String,
    /// Port in the container.
    pub container_port: u16,
    /// Port on the host.
    pub host_port: u16,
    /// Address on the host; none for all.
    pub host_ip: Option<IpAddr>,
}

/// An attachment that no plugin may see: its parts become file names and environment variables.
#[derive(Debug, thiserror::Error)]
#[error("{field} of the attachment is {value:?}, expected {expected}")]
pub struct InvalidAttachment {
    /// Which part.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub expected: &'static str,
}

impl Attachment {
    /// `eth0` of a container.
    #[must_use]
    pub fn new(id: impl Into<String>, netns: impl Into<PathBuf>) -> Self {
        Self {
            id: id.into(),
            netns: netns.into(),
            ifname: "eth0".into(),
            ..Self::default()
        }
    }

    /// Adds the arguments that plugins of Kubernetes networks read.
    #[must_use]
    pub fn with_pod(mut self, namespace: &str, name: &str, uid: &str) -> Self {
        let args = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", namespace),
            ("K8S_POD_NAME", name),
            ("K8S_POD_INFRA_CONTAINER_ID", &self.id),
            ("K8S_POD_UID", uid),
        ];
        self.args
            .extend(args.map(|(k, v)| (k.to_owned(), v.to_owned())));
        self
    }

    /// Checks every part before it becomes a path or an environment variable.
    pub(crate) fn validate(&self) -> Result<(), InvalidAttachment> {
        let invalid = |field, value: &str, expected| {
            Err(InvalidAttachment {
                field,
                value: value.to_owned(),
                expected,
            })
        };
        if !is_valid_name(&self.id) {
            return invalid(
                "id",
                &self.id,
                "a letter or digit, then letters, digits, '.', '_', '-'",
            );
        }
        let plain = |b: u8| b.is_ascii_graphic() && !b"/:".contains(&b);
        if !(1..=MAX_IFNAME).contains(&self.ifname.len())
            || matches!(self.ifname.as_str(), "." | "..")
            || !self.ifname.bytes().all(plain)
        {
            return invalid(
                "ifname",
                &self.ifname,
                "1 to 15 characters without '/' and ':'",
            );
        }
        for (name, value) in &self.args {
            if name.is_empty() || [name, value].iter().any(|s| s.contains([';', '=', '\0'])) {
                return invalid("args", &format!("{name}={value}"), "no ';' and '='");
            }
        }
        Ok(())
    }

    /// `CNI_ARGS`.
    pub(crate) fn args_text(&self) -> String {
        let pairs: Vec<_> = self.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.join(";")
    }

    /// The attachment in a cached result.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "containerId": self.id,
            "netns": self.netns,
            "ifName": self.ifname,
            "args": self.args,
            "portMappings": self.port_mappings_json(),
        })
    }

    /// The value of the capability `portMappings`.
    pub(crate) fn port_mappings_json(&self) -> Value {
        self.port_mappings
            .iter()
            .map(|p| {
                let mut out = json!({
                    "hostPort": p.host_port,
                    "containerPort": p.container_port,
                    "protocol": p.protocol,
                });
                if let Some(ip) = p.host_ip {
                    out["hostIP"] = ip.to_string().into();
                }
                out
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        for id in ["", "../x", "a/b", ".x", "a b", "a\0"] {
            assert!(Attachment::new(id, "/x").validate().is_err(), "{id:?}");
        }
        for ifname in ["", ".", "..", "a/b", "a:b", "a b", "sixteen-letters-"] {
            let attachment = Attachment {
                ifname: ifname.into(),
                ..Attachment::new("a", "/x")
            };
            assert!(attachment.validate().is_err(), "{ifname:?}");
        }
        Attachment::new("0123abc", "/x")
            .with_pod("ns", "name", "uid")
            .validate()
            .unwrap();
        let smuggled = Attachment::new("a", "/x").with_pod("ns;K8S_POD_NAME=other", "n", "u");
        assert!(smuggled.validate().is_err());
    }
}
