//! StopPodSandbox, RemovePodSandbox, and the undoing of a sandbox that was not made to the end.
//!
//! All three walk the same way down. Every step runs whatever became of the one before, every step is safe
//! to repeat, and what failed is said; the record goes last, so that what is left can be tried again.

use std::path::Path;
use std::sync::Arc;

use tracing::{Instrument, info_span};

use super::network::NetworkRequest;
use super::{Sandbox, SandboxPlan, SandboxRecord, Stage, record_file};
use crate::api::{Error, Result, SandboxId};
use crate::container;
use crate::service::{Core, chain, record};

/// Kills every process and takes the network down.
pub(crate) async fn stop(core: &Core, id: &SandboxId) -> Result<()> {
    let Some(sandbox) = core.registry.sandbox(id) else {
        return Ok(());
    };
    let _gate = sandbox.gate.lock().await;
    if core.registry.sandbox(id).is_none() {
        // It went while we waited.
        return Ok(());
    }
    stop_locked(core, &sandbox).await
}

/// Stops, then removes containers, directories and cgroups.
pub(crate) async fn remove(core: &Core, id: &SandboxId) -> Result<()> {
    let Some(sandbox) = core.registry.sandbox(id) else {
        return Ok(());
    };
    let gate = sandbox.gate.lock().await;
    if core.registry.sandbox(id).is_none() {
        return Ok(());
    }
    let mut failures = Failures::default();
    failures.note(
        stop_locked(core, &sandbox)
            .await
            .err()
            .map(|error| error.to_string()),
    );
    for container in core.registry.containers_of(id) {
        let remove = container::remove::remove(core, &container.id);
        let removed = remove
            .instrument(info_span!("container.remove", container = %container.id))
            .await;
        failures.note(removed.err().map(|error| error.to_string()));
    }
    failures.result("remove", &sandbox.id)?;
    forget(core, &sandbox).await?;
    drop(gate);
    core.registry.drop_sandbox(id);
    core.ring(&sandbox.record().config.uid);
    Ok(())
}

/// Undoes what [`super::run`] has done so far, whoever did it. What cannot be undone is logged and stays, listed
/// as not ready: the pod's worker stops and removes it as it does with every sandbox that serves no more.
pub(crate) async fn undo(core: &Core, sandbox: &Arc<Sandbox>) {
    let _gate = sandbox.gate.lock().await;
    let undone = match down(core, sandbox).await {
        Ok(()) => forget(core, sandbox).await,
        Err(error) => Err(error),
    };
    match undone {
        Ok(()) => core.registry.drop_sandbox(&sandbox.id),
        Err(error) => {
            tracing::warn!(sandbox = %sandbox.id, %error, "sandbox could not be undone");
            core.registry.add_sandbox(sandbox.clone());
        }
    }
    core.ring(&sandbox.record().config.uid);
}

async fn stop_locked(core: &Core, sandbox: &Sandbox) -> Result<()> {
    if sandbox.with_record(|record| record.stage) == Stage::Stopped {
        return Ok(());
    }
    let done = down(core, sandbox).await;
    // Not until the exits are known: the containers' last states come from the records of the shim.
    container::settle(core, &sandbox.id);
    done?;
    let record = sandbox.with_record(|record| {
        record.stage = Stage::Stopped;
        record.pid = 0;
        record.clone()
    });
    record::write(&record_file(&sandbox.dir), &record)
        .map_err(|error| Error::Internal(format!("cannot record the sandbox: {error}")))?;
    core.ring(&record.config.uid);
    Ok(())
}

/// From the processes down to the network namespace.
async fn down(core: &Core, sandbox: &Sandbox) -> Result<()> {
    let record = sandbox.record();
    let mut failures = Failures::default();
    let plan = SandboxPlan {
        record: record.clone(),
        dir: sandbox.dir.clone(),
        cgroups: vec![],
    };
    let id = &record.id;
    let stop = sandbox
        .controller
        .stop(&plan)
        .instrument(info_span!("sandbox.stop", sandbox = %id));
    failures.note(stop.await.err().map(|error| chain(&error)));
    sandbox.set_shim(None);
    let cgroups = remove_cgroups(core, &record, &mut failures);
    cgroups
        .instrument(info_span!("sandbox.cgroup_remove", sandbox = %id))
        .await;
    if let Some(netns) = &record.netns {
        let down = detach(core, &record, netns, &mut failures);
        down.instrument(info_span!("sandbox.cni_delete", sandbox = %id))
            .await;
    }
    let removed = sandbox.controller.remove(&plan).await;
    failures.note(removed.err().map(|error| chain(&error)));
    failures.result("stop", &record.id)
}

/// What the shim did not kill, because it was dead itself, dies with its cgroup.
async fn remove_cgroups(core: &Core, record: &SandboxRecord, failures: &mut Failures) {
    for container in core.registry.containers_of(&record.id) {
        let removed = core.cgroups.remove(&container.cgroup()).await;
        failures.note(removed.err().map(|error| chain(&error)));
    }
    let removed = core.remove_sandbox_cgroup(record).await;
    failures.note(removed.err().map(|error| chain(&error)));
}

async fn detach(core: &Core, record: &SandboxRecord, netns: &Path, failures: &mut Failures) {
    let request = NetworkRequest {
        sandbox: &record.id,
        config: &record.config,
        netns,
    };
    let deleted = core.network.delete(request).await;
    failures.note(deleted.err().map(|error| chain(&error)));
    let unpinned = core.network.unpin(netns).await;
    failures.note(unpinned.err().map(|error| chain(&error)));
}

/// The directory with the record.
async fn forget(core: &Core, sandbox: &Sandbox) -> Result<()> {
    record::remove_dir(&core.layout.sandbox(&sandbox.id))
        .map_err(|error| Error::Internal(format!("cannot remove the sandbox's files: {error}")))
}

/// What went wrong on the way down.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<String>);

impl Failures {
    pub(crate) fn note(&mut self, failure: Option<String>) {
        self.0.extend(failure);
    }

    pub(crate) fn result(self, verb: &str, id: &dyn std::fmt::Display) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "failed to {verb} {id}: {}",
            self.0.join("; ")
        )))
    }
}
