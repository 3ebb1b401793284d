//! Garbage collection: what belongs to no container any more.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::plugin::{common, exec};
use super::{Inner, RunnerError};
use crate::ipam;

/// What garbage collection has found.
#[derive(Debug, Default)]
pub struct Collected {
    /// Containers that were detached.
    pub containers: Vec<String>,
    /// Their network namespaces, which may be gone or pinned still.
    pub namespaces: Vec<PathBuf>,
    /// Addresses whose leases were freed beside those.
    pub addresses: Vec<IpAddr>,
    /// What could not be cleaned up; the next collection tries again.
    pub errors: Vec<RunnerError>,
}

impl Inner {
    pub(super) async fn garbage_collect(&self, valid: &[String]) -> Collected {
        let mut collected = Collected::default();
        let mut alive: HashSet<String> = valid.iter().cloned().collect();
        alive.extend(self.busy());
        for entry in self.cache.all() {
            let id = &entry.attachment.id;
            if alive.contains(id) {
                continue;
            }
            let _lock = self.lock(id).await;
            let before = collected.errors.len();
            self.del_entry(&entry, &mut collected.errors).await;
            if collected.errors.len() == before {
                collected.containers.push(id.clone());
                collected.namespaces.push(entry.attachment.netns.clone());
            } else {
                // Its lease goes only with everything else of it.
                alive.insert(id.clone());
            }
        }
        alive.extend(self.busy());
        for dir in self.lease_dirs() {
            match ipam::collect(&dir, &alive) {
                Ok(freed) => collected.addresses.extend(freed),
                Err(e) => collected.errors.push(e.into()),
            }
        }
        self.collect_outside(&alive, &mut collected).await;
        collected
    }

    /// GC of the programs in the chain, for what they hold outside of our sight.
    async fn collect_outside(&self, alive: &HashSet<String>, collected: &mut Collected) {
        let Ok(config) = self.config() else { return };
        let in_process = self.in_process(&config);
        let network = &config.network;
        if network.disable_gc || !network.version.has_gc_and_status() {
            return;
        }
        let attachments: Vec<_> = self
            .cache
            .all()
            .iter()
            .filter(|entry| alive.contains(&entry.attachment.id))
            .map(|entry| {
                let attachment = &entry.attachment;
                json!({"containerID": attachment.id, "ifname": attachment.ifname})
            })
            .collect();
        for plugin in network
            .plugins
            .iter()
            .filter(|p| !in_process.contains(&p.kind))
        {
            let mut stdin = common(network, plugin);
            stdin.insert(
                "cni.dev/valid-attachments".into(),
                attachments.clone().into(),
            );
            let stdin = Value::Object(stdin).to_string();
            let done = self
                .programs
                .command(&plugin.kind, "GC", None, stdin.as_bytes())
                .await;
            collected
                .errors
                .extend(done.map_err(exec(&plugin.kind, "GC")).err());
        }
    }
}
