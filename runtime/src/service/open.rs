//! Opening: what an agent before us left is adopted, undone or taken back.
//!
//! Nothing that is found is a reason not to start. A record that is broken is set aside under another name and
//! reported; a shim that does not answer leaves its containers Unknown. Where nothing can be found out for want of
//! descriptors or memory, there is no start: what runs would be taken for lost.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::record::{Unseen, seen};
use super::{Core, Host, chain, child_cgroup, file_name, is_id, record};
use crate::api::{SandboxId, SeccompProfile};
use crate::container;
use crate::sandbox::{
    ControllerError, Sandbox, SandboxPlan, SandboxRecord, Stage, events, pause, record_file,
    strays, teardown,
};
use crate::shim_client::ShimError;
use crate::spec::capabilities;

/// Where directories go that hold no readable record.
const BROKEN: &str = "broken";

/// How long the start may wait for network plugins, which may take minutes by themselves.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks at the machine.
pub(super) fn host() -> io::Result<Host> {
    let status = fs::read_to_string("/proc/self/status")?;
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let mut extra_masked_paths = Vec::new();
    for cpu in fs::read_dir("/sys/devices/system/cpu")
        .into_iter()
        .flatten()
        .flatten()
    {
        let throttle = cpu.path().join("thermal_throttle");
        if throttle.is_dir() {
            extra_masked_paths.extend(throttle.to_str().map(str::to_owned));
        }
    }
    extra_masked_paths.sort();
    Ok(Host {
        hostname: hostname.trim_end().to_owned(),
        capabilities: capabilities::held(&status),
        extra_masked_paths,
    })
}

/// Compiles the filter that nearly every container has, aside: it takes some 20 ms.
pub(super) fn compile_default_filter(core: &Arc<Core>) {
    let core = core.clone();
    tokio::task::spawn_blocking(move || {
        let set = capabilities::default_set() & core.host.capabilities;
        if let Err(error) = core.filters.get(&SeccompProfile::RuntimeDefault, set) {
            tracing::error!(
                error = chain(&error),
                "cannot compile the default seccomp filter"
            );
        }
    });
}

/// Loads the AppArmor profile that nearly every container has, aside: it takes some 100 ms, once in the life of a node.
pub(super) fn load_default_profile(core: &Arc<Core>) {
    let core = core.clone();
    tokio::spawn(async move { core.app_armor.prepare().await });
}

/// Adopts every sandbox on disk, and takes back what none of them owns.
pub(super) async fn adopt(core: &Arc<Core>) -> Result<(), Unseen> {
    let sandboxes = core.layout.sandboxes();
    end_strays(&sandboxes).await;
    let dirs = seen(&sandboxes, record::subdirectories(&sandboxes))?.unwrap_or_else(|error| {
        tracing::error!(path = %sandboxes.display(), %error, "cannot read sandboxes");
        Vec::new()
    });
    let adoptions = dirs
        .into_iter()
        .filter(|dir| file_name(dir).is_some_and(is_id))
        .map(|dir| {
            let core = core.clone();
            async move { adopt_sandbox(&core, &dir).await }
        });
    // At once: a shim that does not answer must not delay the others.
    let adopted = futures::future::join_all(adoptions).await;
    let parents = adopted.into_iter().collect::<Result<Vec<_>, _>>()?;
    collect(core, &parents.into_iter().flatten().collect()).await
}

/// Ends what runs for sandboxes whose directories are gone: their pods would run twice.
async fn end_strays(sandboxes: &Path) {
    let sandboxes = sandboxes.to_owned();
    let is_stray = move |dir: &Path| {
        dir.parent() == Some(&sandboxes)
            && file_name(dir).is_some_and(is_id)
            && dir.try_exists().is_ok_and(|exists| !exists)
    };
    match strays::aside(strays::PATIENCE, || strays::end(is_stray)).await {
        Ok(ended) => {
            for dir in ended {
                tracing::error!(path = %dir.display(), "sandbox directory is gone, its shim was ended");
            }
        }
        Err(error) => tracing::warn!(%error, "cannot look for shims without a directory"),
    }
}

/// Adopts or undoes one sandbox; returns its cgroup's parent.
async fn adopt_sandbox(core: &Arc<Core>, dir: &Path) -> Result<Option<String>, Unseen> {
    let file = record_file(dir);
    let record: SandboxRecord = match seen(&file, record::read(&file))? {
        Ok(record) => record,
        Err(error) => {
            set_aside(core, dir, &error).await;
            return Ok(None);
        }
    };
    let parent = record.config.cgroup_parent.clone();
    let controller = match core.controller(&record.config.runtime_handler) {
        Ok(controller) => controller,
        Err(error) => {
            // The handler was taken out of the configuration. Its sandboxes stay as they are.
            tracing::warn!(sandbox = %record.id, %error, "sandbox is not adopted");
            return Ok(Some(parent));
        }
    };
    let stage = record.stage;
    let sandbox = Arc::new(Sandbox::new(record, dir.to_owned(), controller));
    if stage == Stage::Making {
        undo(core, &sandbox).await;
        return Ok(Some(parent));
    }
    container::adopt::load(core, &sandbox)?;
    core.registry.add_sandbox(sandbox.clone());
    if stage == Stage::Made {
        reconnect(core, &sandbox).await?;
    }
    container::settle(core, &sandbox.id);
    Ok(Some(parent))
}

/// Undoes what was left half-made, aside when it takes long: a network plugin that hangs must not keep the other
/// pods waiting.
async fn undo(core: &Arc<Core>, sandbox: &Arc<Sandbox>) {
    tracing::info!(sandbox = %sandbox.id, "undoing a sandbox that was not finished");
    core.registry.add_sandbox(sandbox.clone());
    let (owned, of) = (core.clone(), sandbox.clone());
    let undoing = tokio::spawn(async move { teardown::undo(&owned, &of).await });
    if tokio::time::timeout(PATIENCE, undoing).await.is_err() {
        tracing::warn!(sandbox = %sandbox.id, "undoing the sandbox takes long and goes on aside");
    }
}

/// Finds the shim of a sandbox and what it holds.
async fn reconnect(core: &Arc<Core>, sandbox: &Arc<Sandbox>) -> Result<(), Unseen> {
    let plan = SandboxPlan {
        record: sandbox.record(),
        dir: sandbox.dir.clone(),
        cgroups: Vec::new(),
    };
    let holder = match sandbox.controller.status(&plan).await {
        Ok(Some(holder)) => holder,
        Ok(None) => {
            tracing::info!(sandbox = %sandbox.id, "sandbox ended while nobody looked");
            return Ok(());
        }
        Err(ControllerError::Shim {
            source: ShimError::Io { socket, source },
            ..
        }) => {
            let failed = seen::<()>(&socket, Err(source))?;
            tracing::warn!(sandbox = %sandbox.id, error = ?failed, "sandbox cannot be reached");
            return Ok(());
        }
        Err(error) => {
            tracing::warn!(sandbox = %sandbox.id, error = chain(&error), "sandbox does not answer");
            return Ok(());
        }
    };
    match holder.shim.state().await {
        Ok(state) => container::adopt::merge(core, &sandbox.id, &state),
        Err(error) => {
            tracing::warn!(sandbox = %sandbox.id, error = chain(&error), "shim does not answer");
            return Ok(());
        }
    }
    let record = sandbox.with_record(|record| {
        record.pid = holder.pid;
        record.clone()
    });
    // Whoever was before us may have ended in between.
    core.adopt_pause(&record, holder.pid);
    sandbox.set_shim(Some(holder.shim));
    events::follow(core, sandbox, holder.events);
    Ok(())
}

/// Moves a directory without a readable record out of the way. Nobody can say whose it is, so what runs in it
/// ends; its network is collected with those of the sandboxes that are gone.
async fn set_aside(core: &Core, dir: &Path, error: &io::Error) {
    if let Err(error) = pause::end(dir).await {
        tracing::error!(path = %dir.display(), error = chain(&error), "cannot end what runs in it");
    }
    let broken = core.layout.sandboxes().with_file_name(BROKEN);
    let target = broken.join(dir.file_name().unwrap_or_default());
    let moved = record::create_private_dir(&broken).and_then(|()| fs::rename(dir, &target));
    match moved {
        Ok(()) => tracing::error!(
            path = %target.display(), %error, "sandbox record cannot be read, set aside"
        ),
        Err(second) => tracing::error!(
            path = %dir.display(), %error, %second, "sandbox record cannot be read or set aside"
        ),
    }
}

/// Takes back what belongs to nobody: leases, snapshots, volumes, cgroups of containers.
async fn collect(core: &Arc<Core>, parents: &HashSet<String>) -> Result<(), Unseen> {
    // By their records, whether adopted or not: a sandbox whose handler is missing keeps its network.
    let sandboxes = core.layout.sandboxes();
    let dirs = seen(&sandboxes, record::subdirectories(&sandboxes))?.unwrap_or_default();
    let names = dirs
        .iter()
        .filter_map(|dir| file_name(dir))
        .filter(|name| is_id(name));
    let sandboxes: Vec<SandboxId> = names.map(|name| SandboxId(name.to_owned())).collect();
    match tokio::time::timeout(PATIENCE, core.network.collect(&sandboxes)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = chain(&error), "cannot collect network leases"),
        Err(_) => tracing::warn!(
            "collecting network leases takes too long, a plugin hangs; the next start tries again"
        ),
    }
    let known = |id: &str| core.registry.container_by_id(id).is_some();
    match core.images.keys().await {
        Ok(keys) => {
            // Those of mounted images have keys of another form, and an owner of their own.
            for key in keys.iter().filter(|key| is_id(key) && !known(key)) {
                if let Err(error) = core.images.remove(key).await {
                    tracing::warn!(
                        snapshot = key,
                        error = chain(&error),
                        "cannot remove snapshot"
                    );
                }
            }
        }
        Err(error) => tracing::warn!(error = chain(&error), "cannot list snapshots"),
    }
    for volumes in record::subdirectories(&core.layout.all_volumes()).unwrap_or_default() {
        if !file_name(&volumes).is_some_and(|name| is_id(name) && !known(name)) {
            continue;
        }
        if let Err(error) = record::remove_dir(&volumes) {
            tracing::warn!(path = %volumes.display(), %error, "cannot remove volumes");
        }
    }
    for parent in parents.iter().filter(|parent| !parent.is_empty()) {
        let alive = |id: &str| known(id) || sandboxes.iter().any(|one| one.as_str() == id);
        for child in core.cgroups.children(parent).unwrap_or_default() {
            if !is_id(&child) || alive(&child) {
                continue;
            }
            if let Err(error) = core.cgroups.remove(&child_cgroup(parent, &child)).await {
                tracing::warn!(
                    cgroup = child,
                    error = chain(&error),
                    "cannot remove cgroup"
                );
            }
        }
    }
    Ok(())
}
