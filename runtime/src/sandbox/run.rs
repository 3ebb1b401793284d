//! RunPodSandbox.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{Instrument, info_span};

use super::network::NetworkRequest;
use super::{Sandbox, SandboxPlan, SandboxRecord, Stage, events, teardown};
use super::{hostname_file, record_file};
use crate::api::{Error, NamespaceMode, PodSandbox, PodSandboxConfig, Result, SandboxId};
use crate::service::{Core, chain, record};

/// Longest host name that the kernel takes.
const MAX_HOSTNAME: usize = 64;

/// Makes the sandbox, or leaves nothing.
pub(crate) async fn run(core: &Arc<Core>, config: PodSandboxConfig) -> Result<PodSandbox> {
    let controller = core.controller(&config.runtime_handler)?;
    check(&config)?;
    core.warmth.want();
    let id = SandboxId(record::new_id().map_err(|error| internal("cannot make an id", &error))?);
    let netns = match config.network {
        NamespaceMode::Node => None,
        _ => Some(
            core.network
                .new_netns()
                .map_err(|error| network(&id, &error))?,
        ),
    };
    let record = SandboxRecord {
        id: id.clone(),
        config,
        created_at: SystemTime::now(),
        netns,
        stage: Stage::Making,
        ips: Vec::new(),
        pid: 0,
    };
    let dir = core.layout.sandbox(&id);
    record::create_private_dir(&dir)
        .and_then(|()| record::write(&record_file(&dir), &record))
        .map_err(|error| internal("cannot record the sandbox", &error))?;
    let sandbox = Arc::new(Sandbox::new(record, dir, controller));
    match make(core, &sandbox).await {
        Ok(()) => {
            core.registry.add_sandbox(sandbox.clone());
            Ok(sandbox.view())
        }
        Err(error) => {
            teardown::undo(core, &sandbox).await;
            Err(error)
        }
    }
}

/// The steps. Whatever they have done when one fails, the teardown finds by the record.
async fn make(core: &Arc<Core>, sandbox: &Arc<Sandbox>) -> Result<()> {
    let id = &sandbox.id;
    if let Some(netns) = sandbox.record().netns {
        let pin = core.network.pin(&netns);
        pin.instrument(info_span!("sandbox.netns", sandbox = %id))
            .await
            .map_err(|error| network(id, &error))?;
        let add = attach(core, sandbox, &netns);
        add.instrument(info_span!("sandbox.cni", sandbox = %id))
            .await?;
    }
    let plan = create(core, sandbox)
        .instrument(info_span!("sandbox.create", sandbox = %id))
        .await?;
    start(core, sandbox, plan)
        .instrument(info_span!("sandbox.start", sandbox = %id))
        .await
}

async fn attach(core: &Core, sandbox: &Sandbox, netns: &Path) -> Result<()> {
    let record = sandbox.record();
    let request = NetworkRequest {
        sandbox: &record.id,
        config: &record.config,
        netns,
    };
    let ips = core
        .network
        .add(request)
        .await
        .map_err(|error| network(&record.id, &error))?;
    sandbox.with_record(|record| record.ips = ips);
    Ok(())
}

async fn create(core: &Core, sandbox: &Sandbox) -> Result<SandboxPlan> {
    let record = sandbox.record();
    let made = record::create_private_dir(&core.layout.containers(&record.id)).and_then(|()| {
        // Readable for every user of the containers.
        record::write_public(
            &hostname_file(&sandbox.dir),
            format!("{}\n", core.hostname(&record.config)).as_bytes(),
        )
    });
    made.map_err(|error| internal("cannot create the sandbox's files", &error))?;
    let cgroups = core
        .sandbox_cgroups(&record)
        .map_err(|error| internal("cannot create the sandbox's cgroup", &error))?;
    let plan = SandboxPlan {
        record,
        dir: sandbox.dir.clone(),
        cgroups,
    };
    sandbox
        .controller
        .create(&plan)
        .await
        .map_err(|error| internal("cannot create the sandbox", &error))?;
    Ok(plan)
}

async fn start(core: &Arc<Core>, sandbox: &Arc<Sandbox>, plan: SandboxPlan) -> Result<()> {
    let holder = sandbox
        .controller
        .start(&plan)
        .await
        .map_err(|error| Error::Internal(chain(&error)))?;
    core.adopt_pause(&plan.record, holder.pid);
    let record = sandbox.with_record(|record| {
        record.pid = holder.pid;
        record.stage = Stage::Made;
        record.clone()
    });
    record::write(&record_file(&sandbox.dir), &record)
        .map_err(|error| internal("cannot record the sandbox", &error))?;
    sandbox.set_shim(Some(holder.shim));
    events::follow(core, sandbox, holder.events);
    Ok(())
}

/// What the shim would refuse, said before anything is made.
fn check(config: &PodSandboxConfig) -> Result<()> {
    if config.hostname.len() > MAX_HOSTNAME {
        let hostname = &config.hostname;
        return Err(Error::Create(format!(
            "invalid hostname {hostname:?}: longer than {MAX_HOSTNAME} bytes"
        )));
    }
    if matches!(config.pid, NamespaceMode::Target(_)) {
        return Err(Error::Create(
            "a sandbox has no target for its PID namespace".to_owned(),
        ));
    }
    Ok(())
}

fn network(id: &SandboxId, error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Network {
        id: id.clone(),
        message: chain(error),
    }
}

fn internal(what: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Internal(format!("{what}: {}", chain(error)))
}
