//! The configuration of the bridge plugin.

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::ipam::HostLocal;
use crate::plugins::PluginError;
use crate::spec::Field;

/// Fields of other bridge plugins that change what a network is, and that this one does not have.
const UNSUPPORTED: [&str; 6] = [
    "vlan",
    "vlanTrunk",
    "promiscMode",
    "macspoofchk",
    "portIsolation",
    "preserveDefaultVlan",
];

#[derive(Debug, Clone)]
pub(super) struct BridgeConf {
    pub(super) bridge: String,
    pub(super) is_gateway: bool,
    pub(super) is_default_gateway: bool,
    pub(super) masquerade: bool,
    pub(super) non_masquerade_cidrs: Vec<IpNet>,
    pub(super) mtu: Option<u32>,
    pub(super) hairpin: bool,
    /// None when another IPAM plugin, or none at all, is configured.
    pub(super) host_local: Option<HostLocal>,
}

impl BridgeConf {
    pub(super) fn parse(config: &Map<String, Value>) -> Result<Self, PluginError> {
        let value = Value::Object(config.clone());
        let root = Field::root(&value);
        for name in UNSUPPORTED {
            let Some(field) = root.get(name)? else {
                continue;
            };
            let off = [Value::Bool(false), Value::from(0), Value::Array(Vec::new())];
            if !off.contains(&config[name]) {
                return Err(field
                    .wrong("nothing: only the external bridge plugin has it")
                    .into());
            }
        }
        let bridge = root.text("bridge")?;
        let is_default_gateway = root.flag("isDefaultGateway")?;
        let mut non_masquerade_cidrs = Vec::new();
        for field in root.list("nonMasqueradeCIDRs")? {
            non_masquerade_cidrs.push(field.parse("a CIDR")?);
        }
        let ipam = root
            .get("ipam")?
            .map(|ipam| ipam.text("type"))
            .transpose()?;
        let host_local = match ipam.as_deref() {
            Some("host-local") => Some(HostLocal::parse(config)?),
            _ => None,
        };
        Ok(Self {
            bridge: if bridge.is_empty() {
                "cni0".to_owned()
            } else {
                bridge
            },
            is_gateway: root.flag("isGateway")? || is_default_gateway,
            is_default_gateway,
            masquerade: root.flag("ipMasq")?,
            non_masquerade_cidrs,
            mtu: root
                .get("mtu")?
                .map(|f| f.number())
                .transpose()?
                .filter(|mtu| *mtu > 0),
            hairpin: root.flag("hairpinMode")?,
            host_local,
        })
    }
}
