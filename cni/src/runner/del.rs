//! DEL of a chain: by what ADD has left in the cache, or by the container's id alone.

use super::plugin::Chain;
use super::{Inner, RunnerError};
use crate::attachment::Attachment;
use crate::cache::Entry;
use crate::ipam;
use crate::plugins::Verb;

impl Inner {
    pub(super) async fn del(&self, attachment: &Attachment) -> Result<(), RunnerError> {
        let entries = self.cache.of(&attachment.id, &attachment.ifname);
        let mut errors = Vec::new();
        if entries.is_empty() {
            self.del_unknown(attachment, &mut errors).await;
            if errors.is_empty() {
                // There may be an entry that cannot be read.
                let forgotten = self.cache.forget(&attachment.id, &attachment.ifname);
                errors.extend(forgotten.err().map(RunnerError::from));
            }
        }
        for mut entry in entries {
            // The namespace of the call is where it is now; the cache knows where it was.
            if !attachment.netns.as_os_str().is_empty() {
                entry.attachment.netns.clone_from(&attachment.netns);
            }
            self.del_entry(&entry, &mut errors).await;
        }
        RunnerError::of(errors)
    }

    /// Detaches what an entry tells of. The entry goes when every plugin was fine.
    pub(super) async fn del_entry(&self, entry: &Entry, errors: &mut Vec<RunnerError>) {
        let before = errors.len();
        self.del_chain(entry, errors).await;
        if errors.len() > before {
            return;
        }
        let attachment = &entry.attachment;
        let network = &entry.network.name;
        if let Err(e) = self
            .cache
            .remove(network, &attachment.id, &attachment.ifname)
        {
            errors.push(e.into());
        }
    }

    /// Nothing is known of this container: the network of now is asked, without a result, and leases under its id are
    /// freed, unless a plugin fails, which may know the address still.
    async fn del_unknown(&self, attachment: &Attachment, errors: &mut Vec<RunnerError>) {
        let before = errors.len();
        match self.config() {
            Ok(config) => {
                let entry = Entry {
                    in_process: self.in_process(&config),
                    network: config.network,
                    attachment: attachment.clone(),
                    result: None,
                };
                self.del_chain(&entry, errors).await;
            }
            // No network of now, or one that nobody can use: nothing was attached by it, else there were an entry in
            // the cache. But there may have been another one: our own pair is known by its name.
            Err(_) => errors.extend(self.del_pair(attachment).await.err()),
        }
        if errors.len() > before {
            return;
        }
        for dir in self.lease_dirs() {
            if let Err(e) = ipam::release(&dir, &attachment.id, &attachment.ifname) {
                errors.push(e.into());
            }
        }
    }

    /// Ends at the first plugin that fails: those before it have given out the address, which nobody else may get while
    /// another plugin still knows it as this container's.
    async fn del_chain(&self, entry: &Entry, errors: &mut Vec<RunnerError>) {
        let chain = Chain {
            network: &entry.network,
            attachment: &entry.attachment,
            in_process: &entry.in_process,
        };
        for plugin in entry.network.plugins.iter().rev() {
            let done = self
                .plugin_command(chain, plugin, Verb::Del, entry.result.as_ref())
                .await;
            if let Err(error) = done {
                errors.push(error);
                return;
            }
        }
    }

    /// The directories of leases of every network that ever had one.
    pub(super) fn lease_dirs(&self) -> Vec<std::path::PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.options.ipam_dir) else {
            return Vec::new();
        };
        entries
            .filter_map(Result::ok)
            .map(|e| e.path())
            .filter(|path| path.is_dir())
            .collect()
    }
}
