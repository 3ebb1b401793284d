//! The built-in plugins. Each one runs on a short-lived thread that may enter the pod's namespace.

pub(crate) mod bridge;
mod loopback;
mod portmap;
mod sysctl;

use std::io;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::attachment::Attachment;
use crate::ipam::IpamError;
use crate::netlink::NetlinkError;
use crate::netns::NetnsError;
use crate::spec::{AddResult, ParseError};
use crate::task::on_thread;

/// A built-in plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// Its configuration is wrong.
    #[error("configuration is wrong")]
    Config(#[from] ParseError),
    /// Addresses.
    #[error("cannot lease or release addresses")]
    Ipam(#[from] IpamError),
    /// The network namespace.
    #[error("network namespace cannot be used")]
    Netns(#[from] NetnsError),
    /// The kernel refused.
    #[error("the kernel refused")]
    Netlink(#[from] NetlinkError),
    /// A kernel setting could not be written.
    #[error("cannot write {}", .path.display())]
    Sysctl {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No thread to work on.
    #[error("cannot run on a thread of its own")]
    Thread(#[source] io::Error),
    /// What was found is not what the result says (CHECK), or not usable.
    #[error("{0}")]
    Mismatch(String),
}

/// The built-in plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuiltInPlugin {
    Bridge,
    Loopback,
    PortMap,
}

impl BuiltInPlugin {
    /// The built-in plugin of a type.
    pub(crate) fn find(kind: &str) -> Option<Self> {
        match kind {
            "bridge" => Some(Self::Bridge),
            "loopback" => Some(Self::Loopback),
            "portmap" => Some(Self::PortMap),
            _ => None,
        }
    }
}

/// Everything that one call of a built-in plugin needs.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) attachment: Attachment,
    pub(crate) network: String,
    pub(crate) config: Map<String, Value>,
    pub(crate) previous: Option<AddResult>,
    /// Where leases are, one directory below it per network.
    pub(crate) ipam_dir: PathBuf,
    /// The result of an IPAM plugin that was executed; none when host-local serves here.
    pub(crate) ipam_result: Option<AddResult>,
}

/// What a plugin is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
}

/// Runs a built-in plugin. ADD gives its result; the other verbs give an empty one.
pub(crate) async fn run(
    plugin: BuiltInPlugin,
    verb: Verb,
    call: Call,
) -> Result<AddResult, PluginError> {
    let nothing = |()| AddResult::default();
    let work = move || match (plugin, verb) {
        (BuiltInPlugin::Bridge, Verb::Add) => bridge::add(&call),
        (BuiltInPlugin::Bridge, Verb::Del) => bridge::del(&call).map(nothing),
        (BuiltInPlugin::Bridge, Verb::Check) => bridge::check(&call).map(nothing),
        (BuiltInPlugin::Loopback, Verb::Add) => loopback::add(&call),
        (BuiltInPlugin::Loopback, Verb::Del) => Ok(AddResult::default()),
        (BuiltInPlugin::Loopback, Verb::Check) => loopback::check(&call).map(nothing),
        (BuiltInPlugin::PortMap, Verb::Add) => portmap::add(&call),
        (BuiltInPlugin::PortMap, Verb::Del) => portmap::del(&call).map(nothing),
        (BuiltInPlugin::PortMap, Verb::Check) => portmap::check(&call).map(nothing),
    };
    on_thread("cni", work).await.map_err(PluginError::Thread)?
}

/// FNV-1a: names that stay the same from one run of the program to the next. Not for secrets.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
