//! CHECK and STATUS.

use serde_json::Value;

use super::plugin::{Chain, common, exec};
use super::{Inner, RunnerError};
use crate::attachment::Attachment;
use crate::exec::ExecError;
use crate::plugins::Verb;

impl Inner {
    pub(super) async fn check(&self, attachment: &Attachment) -> Result<(), RunnerError> {
        let entries = self.cache.of(&attachment.id, &attachment.ifname);
        let missing = || RunnerError::NotAttached {
            id: attachment.id.clone(),
            ifname: attachment.ifname.clone(),
        };
        let Some(entry) = entries.into_iter().find(|e| e.result.is_some()) else {
            return Err(missing());
        };
        if entry.network.disable_check || !entry.network.version.has_check() {
            return Ok(());
        }
        let chain = Chain {
            network: &entry.network,
            attachment: &entry.attachment,
            in_process: &entry.in_process,
        };
        for plugin in &entry.network.plugins {
            self.plugin_command(chain, plugin, Verb::Check, entry.result.as_ref())
                .await?;
        }
        Ok(())
    }

    pub(super) async fn status(&self) -> Result<(), RunnerError> {
        let config = self.config()?;
        let in_process = self.in_process(&config);
        let network = &config.network;
        for plugin in network
            .plugins
            .iter()
            .filter(|p| !in_process.contains(&p.kind))
        {
            let (name, dirs) = (&plugin.kind, &self.options.bin_dirs);
            if self.programs.find(name).is_none() {
                let missing = ExecError::Missing {
                    name: name.clone(),
                    dirs: dirs.clone(),
                };
                return Err(exec(name, "STATUS")(missing));
            }
            if network.version.has_gc_and_status() {
                let stdin = Value::Object(common(network, plugin)).to_string();
                let done = self
                    .programs
                    .command(name, "STATUS", None, stdin.as_bytes());
                done.await.map_err(exec(name, "STATUS"))?;
            }
        }
        Ok(())
    }
}
