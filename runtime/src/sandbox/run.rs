//! RunPodSandbox.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use super::network::NetworkRequest;
use super::{Sandbox, SandboxPlan, SandboxRecord, Stage, events, sysctls, teardown};
use super::{hostname_file, record_file};
use crate::api::{
    Error, NamespaceMode, PodSandbox, PodSandboxConfig, Result, SandboxId, UserNamespace,
};
use crate::service::{Core, chain, record};

/// Longest host name that the kernel takes.
const MAX_HOSTNAME: usize = 64;

/// Begins the reason of a pod that asks for what the node has not got.
const NO_USER_NAMESPACES: &str = "this node has no user namespaces for pods";

/// Makes the sandbox, or leaves nothing.
pub(crate) async fn run(
    core: &Arc<Core>,
    config: PodSandboxConfig,
    given_up: &CancellationToken,
) -> Result<PodSandbox> {
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
        selinux_level: core.new_level(&id),
    };
    let dir = core.layout.sandbox(&id);
    record::create_private_dir(&dir)
        .and_then(|()| record::write(&record_file(&dir), &record))
        .map_err(|error| internal("cannot record the sandbox", &error))?;
    let sandbox = Arc::new(Sandbox::new(record, dir, controller));
    match make(core, &sandbox, given_up).await {
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
async fn make(
    core: &Arc<Core>,
    sandbox: &Arc<Sandbox>,
    given_up: &CancellationToken,
) -> Result<()> {
    let id = &sandbox.id;
    let record = sandbox.record();
    if let Some(users) = record.config.user_namespace {
        make_user_namespace(core, sandbox, users)
            .instrument(info_span!("sandbox.users", sandbox = %id))
            .await?;
    } else if let Some(netns) = &record.netns {
        let pin = core.network.pin(netns);
        pin.instrument(info_span!("sandbox.netns", sandbox = %id))
            .await
            .map_err(|error| network(id, &error))?;
    }
    if let Some(netns) = &record.netns {
        let add = attach(core, sandbox, netns, given_up);
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

/// The network namespace belongs to the user namespace, so that the shim makes both, before CNI has its turn.
async fn make_user_namespace(
    core: &Arc<Core>,
    sandbox: &Arc<Sandbox>,
    users: UserNamespace,
) -> Result<()> {
    let supported = core.users.look().await;
    supported.map_err(|why| Error::Create(format!("{NO_USER_NAMESPACES}: {why}")))?;
    let plan = SandboxPlan {
        record: sandbox.record(),
        dir: sandbox.dir.clone(),
        cgroups: Vec::new(),
    };
    let made = sandbox.controller.make_user_namespace(&plan, users).await;
    made.map_err(|error| Error::Internal(chain(&error)))?;
    match &plan.record.netns {
        Some(netns) => core
            .network
            .complete(netns)
            .await
            .map_err(|error| network(&sandbox.id, &error)),
        None => Ok(()),
    }
}

async fn attach(
    core: &Core,
    sandbox: &Sandbox,
    netns: &Path,
    given_up: &CancellationToken,
) -> Result<()> {
    let record = sandbox.record();
    let request = NetworkRequest {
        sandbox: &record.id,
        config: &record.config,
        netns,
    };
    let ips = core
        .network
        .add_until(request, given_up)
        .await
        .map_err(|error| network(&record.id, &error))?;
    if ips.is_empty() {
        // Nobody could reach the pod, and its worker would make the next sandbox at once, for ever.
        return Err(Error::Network {
            id: record.id,
            message: "the CNI result has no address for the pod's interface".to_owned(),
        });
    }
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
        .await
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
    if config.user_namespace.is_some() {
        let of_node = [
            (&config.network, "network"),
            (&config.pid, "processes"),
            (&config.ipc, "IPC"),
        ];
        let shared = of_node
            .iter()
            .find(|(mode, _)| **mode == NamespaceMode::Node);
        if let Some((_, what)) = shared {
            return Err(Error::Create(format!(
                "a pod with a user namespace (hostUsers: false) cannot have the node's {what}"
            )));
        }
    }
    sysctls::check(config).map_err(Error::Create)?;
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
