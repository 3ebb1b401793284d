//! Starts one container: image ► files and environment ► create ► start ► log link ► postStart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ContainerState, Image, Mount, PodSandbox};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span, warn};

use super::{image, stop};
use crate::env;
use crate::env::field::NodeFacts;
use crate::pod::actions::Start;
use crate::pod::config::container::{self, Ingredients, message_file, message_path};
use crate::pod::config::mounts;
use crate::pod::files::{self, dns, hosts};
use crate::pod::hooks::Hook;
use crate::pod::settings::Deps;
use crate::pod::spec;
use crate::sinks::{EventKind, MountedVolumes};
use hanok_runtime::service::chain;

/// Mode of files that containers read.
const READABLE: u32 = 0o644;
/// Mode of the termination message, which whoever the container runs as writes.
const WRITABLE: u32 = 0o666;

/// Time to the next try to stop a container whose hook has failed.
const STOP_RETRY: Duration = Duration::from_secs(10);

/// Why a container was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pod) enum StartError {
    /// The pod is being stopped.
    Cancelled,
    /// The pull failed: it is tried again after its back-off.
    Pull {
        /// The image.
        image: String,
        /// Container-status reason.
        reason: &'static str,
        /// The cause.
        message: String,
    },
    /// Anything before the container ran: it is tried again after a while.
    Failed {
        /// Container-status reason.
        reason: &'static str,
        /// The cause.
        message: String,
    },
    /// It was started, and has ended: what comes next is the restart policy's to say.
    Ended {
        /// Container-status reason.
        reason: &'static str,
        /// The cause.
        message: String,
    },
}

impl StartError {
    /// A failure before the container ran.
    pub(super) fn failed(reason: &'static str, message: String) -> Self {
        Self::Failed { reason, message }
    }
}

/// A container to start.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    pub(in crate::pod) container: Container,
    pub(in crate::pod) plan: Start,
    pub(in crate::pod) sandbox: PodSandbox,
    pub(in crate::pod) volumes: MountedVolumes,
    /// Its records so far.
    pub(in crate::pod) records: Vec<api::Container>,
    /// The container whose processes it sees, or why there is none.
    pub(in crate::pod) target: Option<Result<ContainerId, String>>,
    pub(in crate::pod) cancelled: CancellationToken,
}

/// Starts it. Cancelling takes effect until the container is made, and in its postStart hook.
pub(in crate::pod) async fn start(job: Job) -> Result<(), StartError> {
    let cancelled = job.cancelled.clone();
    let prepare = async {
        let volumes = image::volumes(&job.deps, &job.pod, &job.container).await?;
        let image = image::ensure(&job.deps, &job.pod, &job.container).await?;
        let unpacked = image::unpack(&job.deps, &image).await;
        unpacked.map_err(|error| {
            let message = format!("cannot prepare the root filesystem: {}", chain(&error));
            job.failed("CreateContainerError", message)
        })?;
        job.config(&image, volumes).await
    };
    let prepared = cancelled
        .run_until_cancelled(prepare)
        .await
        .ok_or(StartError::Cancelled)?;
    let config = prepared?;
    let log_path = config.log_path.clone();
    job.make_room().await;
    if cancelled.is_cancelled() {
        return Err(StartError::Cancelled);
    }
    let name = &job.container.name;
    let id = job
        .deps
        .runtime
        .create_container(&job.sandbox.id, config)
        .instrument(info_span!("container.create", container = %name))
        .await
        .map_err(|error| job.failed("CreateContainerError", chain(&error)))?;
    job.event(EventKind::Normal, "Created", "Container created");
    if cancelled.is_cancelled() {
        return Err(StartError::Cancelled);
    }
    let started = job
        .deps
        .runtime
        .start_container(&id)
        .instrument(info_span!("container.start", container = %name))
        .await;
    if let Err(error) = started {
        let reason = "RunContainerError";
        let (message, ended) = match error {
            // The cause, as the container's status will have it.
            api::Error::Start { message, .. } => (message, true),
            other => (chain(&other), false),
        };
        job.event(EventKind::Warning, "Failed", &format!("Error: {message}"));
        return Err(match ended {
            true => StartError::Ended { reason, message },
            false => StartError::Failed { reason, message },
        });
    }
    job.event(EventKind::Normal, "Started", "Container started");
    job.link_log(&id, &log_path).await;
    job.post_start(&id).await
}

impl Job {
    fn event(&self, kind: EventKind, reason: &str, message: &str) {
        self.deps
            .event(&self.pod, &self.container, kind, reason, message);
    }

    /// A failure before the container ran, with its event.
    fn failed(&self, reason: &'static str, message: String) -> StartError {
        self.event(EventKind::Warning, "Failed", &format!("Error: {message}"));
        StartError::failed(reason, message)
    }

    /// The container's configuration, with the files that it mounts written.
    async fn config(
        &self,
        image: &Image,
        mut volumes: MountedVolumes,
    ) -> Result<api::ContainerConfig, StartError> {
        volumes.extend(self.volumes.clone());
        let refused = |message| self.failed("CreateContainerConfigError", message);
        let target = self.target.clone().transpose().map_err(refused)?;
        let facts = NodeFacts {
            host_ips: self.deps.settings.host_ips.clone(),
            pod_ips: self.pod_ips(),
            allocatable: self.deps.settings.allocatable.clone(),
        };
        let objects = &*self.deps.objects;
        let envs = env::resolve(&self.pod, &self.container, &facts, objects, &volumes)
            .await
            .map_err(|error| refused(chain(&error)))?;
        let files = Files {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            container: self.container.clone(),
            pod_ips: facts.pod_ips,
            volumes,
            envs: envs.clone(),
            attempt: self.plan.attempt,
            newest: self
                .records
                .iter()
                .map(|record| record.config.attempt)
                .max(),
        };
        let (attempt, mounts) = files::off_the_loop(move || files.write())
            .await
            .unwrap_or_else(|| Err("writing the container's files failed".to_owned()))
            .map_err(refused)?;
        container::config(Ingredients {
            pod: &self.pod,
            container: &self.container,
            settings: &self.deps.settings,
            image,
            attempt,
            back_off: self.plan.back_off,
            envs,
            mounts,
            target,
        })
        .map_err(refused)
    }

    /// The pod's addresses.
    fn pod_ips(&self) -> Vec<String> {
        match spec::host_network(&self.pod) {
            true => self.deps.settings.host_ips.clone(),
            false => self.sandbox.ips.clone(),
        }
    }

    /// Removes what was made and never ran, and all runs but the newest two.
    async fn make_room(&self) {
        let ended = self
            .records
            .iter()
            .filter(|record| record.state == ContainerState::Exited);
        let created = self
            .records
            .iter()
            .filter(|record| record.state == ContainerState::Created);
        for record in ended.skip(1).chain(created) {
            if let Err(error) = self.deps.runtime.remove_container(&record.id).await {
                warn!(container = %record.config.name, id = %record.id, error = chain(&error), "cannot remove a dead container");
                continue;
            }
            let (log, link) = (record.log_path.clone(), self.log_link(&record.id));
            let removed = files::off_the_loop(move || files::remove_run_logs(&log, &link)).await;
            if let Some(Err(error)) = removed {
                warn!(container = %record.config.name, %error, "cannot remove the logs of a dead container");
            }
        }
    }

    /// Where the link to a run's log stands.
    fn log_link(&self, id: &ContainerId) -> PathBuf {
        let pod = (spec::namespace(&self.pod), spec::name(&self.pod));
        files::log_link(
            &self.deps.settings.log_links_dir,
            pod,
            &self.container.name,
            id.as_str(),
        )
    }

    /// Links the log for collectors. A failure costs only them.
    async fn link_log(&self, id: &ContainerId, log_path: &Path) {
        let log = self.deps.settings.pod_log_dir(&self.pod).join(log_path);
        let link = self.log_link(id);
        let linked = files::off_the_loop(move || files::link_log(&link, &log)).await;
        if let Some(Err(error)) = linked {
            warn!(container = %self.container.name, %error, "cannot link the container's log");
        }
    }

    /// Runs the postStart hook; a failed one ends the container.
    async fn post_start(&self, id: &ContainerId) -> Result<(), StartError> {
        let lifecycle = self.container.lifecycle.as_ref();
        let Some(handler) = lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        let ips = self.pod_ips();
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        let hook = Hook {
            pod: &self.pod,
            container: &self.container,
            id,
            pod_ip: ip,
            handler,
        };
        let run = hook.run(&*self.deps.runtime);
        let error = match self.cancelled.run_until_cancelled(run).await {
            None => return Err(StartError::Cancelled),
            Some(Ok(told)) => {
                self.deps.hook_told(&self.pod, told);
                return Ok(());
            }
            Some(Err(error)) => error,
        };
        let message = hook.message(&error);
        warn!(container = %self.container.name, message, "postStart hook failed");
        let event = "PostStartHook failed";
        self.event(EventKind::Warning, "FailedPostStartHook", event);
        let stop = || {
            stop::stop(stop::Job {
                deps: self.deps.clone(),
                pod: self.pod.clone(),
                container: Some(self.container.clone()),
                id: id.clone(),
                name: self.container.name.clone(),
                pod_ip: ip.to_owned(),
                grace: spec::grace_period(&self.pod),
                message: Some("FailedPostStartHook".to_owned()),
                turn: None,
            })
        };
        // As long as it lives it is no container that others may start after.
        while let Err(error) = stop().await {
            if matches!(error, api::Error::NotFound { .. }) {
                break;
            }
            warn!(container = %self.container.name, error = chain(&error), "cannot stop the container");
            let pause = tokio::time::sleep(STOP_RETRY);
            if self.cancelled.run_until_cancelled(pause).await.is_none() {
                return Err(StartError::Cancelled);
            }
        }
        Err(StartError::Ended {
            reason: "PostStartHookError",
            message,
        })
    }
}

/// Everything on disk that a container needs.
struct Files {
    deps: Arc<Deps>,
    pod: Arc<Pod>,
    container: Container,
    pod_ips: Vec<String>,
    volumes: MountedVolumes,
    envs: Vec<(String, String)>,
    attempt: u32,
    /// The restart count of the newest record.
    newest: Option<u32>,
}

impl Files {
    /// Writes the files; gives the restart count and every mount. Blocks.
    fn write(self) -> Result<(u32, Vec<Mount>), String> {
        let settings = &self.deps.settings;
        let name = &self.container.name;
        let mut attempt = self.attempt;
        let logs = settings.pod_log_dir(&self.pod).join(name);
        let logged = files::attempt_of_logs(&logs);
        // A log later than every record is that of a run whose record is lost.
        if self
            .newest
            .is_none_or(|newest| logged > newest.saturating_add(1))
        {
            attempt = attempt.max(logged);
        }
        let mut mounts = mounts::volume_mounts(&self.container, &self.volumes, &self.envs)?;
        let pod_dir = settings.pod_dir(&spec::uid(&self.pod));
        let mut add = |file: PathBuf, at: &str, content: &str, mode: u32| {
            if mounts::takes(&self.container, at) {
                return Ok(());
            }
            files::write(&file, content, mode)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
            mounts.push(Mount {
                container_path: at.to_owned(),
                host_path: file,
                sub_path: String::new(),
                readonly: false,
                recursive_readonly: false,
                propagation: api::Propagation::Private,
                selinux_relabel: true,
            });
            Ok::<(), String>(())
        };
        let message = message_file(&pod_dir, name, attempt);
        add(message, message_path(&self.container), "", WRITABLE)?;
        let node = match spec::host_network(&self.pod) {
            true => std::fs::read_to_string(Path::new("/etc/hosts")).unwrap_or_default(),
            false => String::new(),
        };
        let text = hosts::hosts(
            &self.pod,
            &self.pod_ips,
            &settings.dns.cluster_domain,
            &node,
        );
        add(pod_dir.join("etc-hosts"), "/etc/hosts", &text, READABLE)?;
        let (conf, _) = dns::resolv_conf(&self.pod, &settings.dns);
        add(
            pod_dir.join("resolv.conf"),
            "/etc/resolv.conf",
            &conf.text(),
            READABLE,
        )?;
        Ok((attempt, mounts))
    }
}
