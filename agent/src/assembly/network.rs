//! Which pod network a node has: the one that its CNI directory describes, or else the built-in bridge.
//!
//! A network add-on may put its configuration there at any time; it is looked for whenever the node looks at its own
//! status, so that add-ons work as they do on every node.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use hanok_cni::{BuiltIn, Config, Source};
use hanok_runtime::sandbox::network::CniNetwork;
use ipnet::IpNet;

/// Name of the built-in network: part of the paths of its leases.
const NAME: &str = "hanok";

/// What is used now.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// Whatever the directory holds.
    Directory,
    /// The bridge, with these addresses.
    BuiltIn(Vec<IpNet>),
}

/// The pod network of this node.
#[derive(Debug, Clone)]
pub struct NodeNetwork {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cni: Arc<CniNetwork>,
    conf_dir: PathBuf,
    bridge: String,
    non_masquerade_cidrs: Vec<IpNet>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pod_cidrs: Vec<IpNet>,
    choice: Option<Choice>,
}

impl NodeNetwork {
    pub(super) fn new(
        cni: Arc<CniNetwork>,
        conf_dir: PathBuf,
        bridge: String,
        non_masquerade_cidrs: Vec<IpNet>,
    ) -> Self {
        let state = Mutex::default();
        Self {
            inner: Arc::new(Inner {
                cni,
                conf_dir,
                bridge,
                non_masquerade_cidrs,
                state,
            }),
        }
    }

    /// The node has these addresses for pods from now on.
    pub fn set_pod_cidrs(&self, cidrs: &[IpNet]) -> anyhow::Result<()> {
        let mut state = self
            .inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.pod_cidrs = cidrs.to_vec();
        self.inner.choose(&mut state)
    }

    /// Looks whether the CNI directory has a configuration now, or has none any more.
    pub fn look(&self) -> anyhow::Result<()> {
        let mut state = self
            .inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.inner.choose(&mut state)
    }

    /// What the network waits for, when it has none.
    pub fn waits_for(&self) -> Option<String> {
        let state = self
            .inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waits = state.pod_cidrs.is_empty() && state.choice == Some(Choice::Directory);
        (waits && !self.inner.has_configuration()).then(|| {
            format!(
                "the node has no podCIDR yet, and there is no network configuration in {}",
                self.inner.conf_dir.display()
            )
        })
    }
}

impl Inner {
    /// Anything that ends like a configuration counts, also when it is broken: then the network is not ready, and
    /// the reason is told.
    fn has_configuration(&self) -> bool {
        let entries = std::fs::read_dir(&self.conf_dir)
            .into_iter()
            .flatten()
            .flatten();
        let mut names = entries.map(|entry| entry.path());
        names.any(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("conf" | "conflist" | "json"))
        })
    }

    /// Changes the source of the network when it has to be another one.
    fn choose(&self, state: &mut State) -> anyhow::Result<()> {
        let choice = if self.has_configuration() || state.pod_cidrs.is_empty() {
            Choice::Directory
        } else {
            Choice::BuiltIn(state.pod_cidrs.clone())
        };
        if state.choice.as_ref() == Some(&choice) {
            return Ok(());
        }
        let source = match &choice {
            Choice::Directory => Source::Dir(self.conf_dir.clone()),
            Choice::BuiltIn(cidrs) => {
                tracing::info!(
                    ?cidrs,
                    bridge = self.bridge,
                    "pods get the built-in network"
                );
                Source::Fixed(self.built_in(cidrs)?)
            }
        };
        self.cni.set_source(source);
        state.choice = Some(choice);
        Ok(())
    }

    fn built_in(&self, pod_cidrs: &[IpNet]) -> anyhow::Result<Config> {
        Config::built_in(&BuiltIn {
            name: NAME.to_owned(),
            bridge: self.bridge.clone(),
            pod_cidrs: pod_cidrs.to_vec(),
            mtu: None,
            masquerade: true,
            non_masquerade_cidrs: self.non_masquerade_cidrs.clone(),
            hairpin: true,
        })
        .context("cannot use these pod addresses")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(conf_dir: &std::path::Path) -> NodeNetwork {
        let cni = CniNetwork::new("/nowhere".into(), hanok_cni::Options::default());
        NodeNetwork::new(
            Arc::new(cni),
            conf_dir.to_owned(),
            "hanok0".into(),
            Vec::new(),
        )
    }

    fn choice(network: &NodeNetwork) -> Choice {
        network.inner.state.lock().unwrap().choice.clone().unwrap()
    }

    #[test]
    fn an_add_ons_configuration_goes_before_the_built_in_network() {
        let dir = tempfile::tempdir().unwrap();
        let network = network(dir.path());
        network.set_pod_cidrs(&[]).unwrap();
        assert!(network.waits_for().unwrap().contains("no podCIDR yet"));
        let cidrs: Vec<IpNet> = vec!["10.244.1.0/24".parse().unwrap()];
        network.set_pod_cidrs(&cidrs).unwrap();
        assert_eq!(choice(&network), Choice::BuiltIn(cidrs.clone()));
        assert_eq!(network.waits_for(), None);
        std::fs::write(dir.path().join("10-addon.conflist"), "{}").unwrap();
        network.look().unwrap();
        assert_eq!(choice(&network), Choice::Directory);
        std::fs::remove_file(dir.path().join("10-addon.conflist")).unwrap();
        network.look().unwrap();
        assert_eq!(choice(&network), Choice::BuiltIn(cidrs));
    }

    #[test]
    fn addresses_that_cannot_be_used_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tiny: IpNet = "10.0.0.0/32".parse().unwrap();
        assert!(network(dir.path()).set_pod_cidrs(&[tiny]).is_err());
    }
}
