//! ADD of a chain, and its undoing.

use tokio_util::sync::CancellationToken;

use super::plugin::Chain;
use super::{Inner, RunnerError};
use crate::attachment::Attachment;
use crate::cache::Entry;
use crate::plugins::{BuiltInPlugin, Verb};
use crate::spec::{AddResult, PluginConfig};

impl Inner {
    pub(super) async fn add(
        &self,
        attachment: Attachment,
        given_up: &CancellationToken,
    ) -> Result<AddResult, RunnerError> {
        let config = self.config()?;
        let network = &config.network.name;
        let known = self.cache.read(network, &attachment.id, &attachment.ifname);
        if known.is_some_and(|entry| entry.result.is_some()) {
            return Err(RunnerError::Exists {
                id: attachment.id,
                ifname: attachment.ifname,
                network: network.clone(),
            });
        }
        let mut entry = Entry {
            in_process: self.in_process(&config),
            network: config.network,
            attachment,
            result: None,
        };
        self.cache.write(&entry)?;
        let chain = Chain {
            network: &entry.network,
            attachment: &entry.attachment,
            in_process: &entry.in_process,
        };
        let (done, outcome) = self.add_chain(chain, given_up).await;
        let outcome = match outcome {
            Ok(result) => {
                entry.result = Some(result.clone());
                self.cache
                    .write(&entry)
                    .map(|()| result)
                    .map_err(RunnerError::from)
            }
            Err(e) => Err(e),
        };
        if outcome.is_err() {
            self.undo(&entry, done).await;
        }
        outcome
    }

    /// Runs the plugins in order. Also says how many of them were begun.
    async fn add_chain(
        &self,
        chain: Chain<'_>,
        given_up: &CancellationToken,
    ) -> (usize, Result<AddResult, RunnerError>) {
        let mut result = None;
        // The built-in bridge brings loopback up on its way; no other plugin does.
        let bridge = chain.in_process.iter().any(|kind| kind == "bridge");
        if !bridge && let Err(e) = self.loopback(chain, given_up).await {
            return (0, Err(e));
        }
        for (index, plugin) in chain.network.plugins.iter().enumerate() {
            let added = self.plugin_add(chain, plugin, result.take(), given_up);
            match added.await {
                Ok(added) => result = Some(added),
                Err(e) => return (index + 1, Err(e)),
            }
        }
        (chain.network.plugins.len(), Ok(result.unwrap_or_default()))
    }

    async fn loopback(
        &self,
        chain: Chain<'_>,
        given_up: &CancellationToken,
    ) -> Result<(), RunnerError> {
        let kind = "loopback".to_owned();
        debug_assert!(BuiltInPlugin::find(&kind).is_some(), "loopback is built in");
        let in_process = [kind.clone()];
        let chain = Chain {
            in_process: &in_process,
            ..chain
        };
        let plugin = PluginConfig {
            kind,
            capabilities: Default::default(),
            raw: Default::default(),
        };
        let added = self.plugin_add(chain, &plugin, None, given_up).await;
        added.map(|_| ())
    }

    /// DEL of the first `count` plugins, last first. What cannot be undone stays in the cache, where DEL
    /// and garbage collection find it; the caller gets the error of ADD, so that this one is logged.
    async fn undo(&self, entry: &Entry, count: usize) {
        let chain = Chain {
            network: &entry.network,
            attachment: &entry.attachment,
            in_process: &entry.in_process,
        };
        let mut clean = true;
        for (index, plugin) in entry.network.plugins.iter().enumerate().take(count).rev() {
            let done = self
                .plugin_command(chain, plugin, Verb::Del, entry.result.as_ref())
                .await;
            let Err(e) = done else { continue };
            // The plugin that failed may be one that cannot run at all.
            let last = index + 1 == count;
            clean &= last && matches!(&e, RunnerError::Exec { source, .. } if source.never_ran());
            tracing::warn!(
                plugin = plugin.kind,
                error = e.chain(),
                "undo of a failed ADD failed"
            );
            if !clean {
                // As DEL does it.
                break;
            }
        }
        let attachment = &entry.attachment;
        if clean
            && let Err(e) =
                self.cache
                    .remove(&entry.network.name, &attachment.id, &attachment.ifname)
        {
            tracing::warn!(error = %e, "cached result of a failed ADD stays");
        }
    }
}
