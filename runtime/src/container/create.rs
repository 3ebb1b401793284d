//! CreateContainer: record, specification, directories. No process, no mount.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use hanok_shim::protocol::Rootfs;
use tracing::{Instrument, info_span};

use super::rootfs::RootfsImage;
use super::{Container, ContainerRecord, Phase, devices, propagation, spec_file, target};
use crate::api::{
    ContainerConfig, ContainerId, Error, NamespaceMode, Result, SandboxId, SandboxState,
};
use crate::lsm::selinux::{self, Labels};
use crate::sandbox::{Sandbox, hostname_file};
use crate::service::{Core, chain, child_cgroup, record};
use crate::spec::{self, HostFacts, ImageFacts, mounts};

/// Makes a container in a ready sandbox, or leaves nothing.
pub(crate) async fn create(
    core: &Arc<Core>,
    sandbox: &SandboxId,
    config: ContainerConfig,
) -> Result<ContainerId> {
    // It is started in a moment.
    core.warmth.want();
    let id = ContainerId(
        record::new_id().map_err(|error| Error::Internal(format!("cannot make an id: {error}")))?,
    );
    let sandbox = core
        .registry
        .sandbox(sandbox)
        .ok_or_else(|| Error::NotFound {
            kind: "sandbox",
            id: sandbox.0.clone(),
        })?;
    let span = info_span!("container.create", container = %id, name = config.name);
    async {
        ready(core, &sandbox)?;
        let dir = core.layout.containers(&sandbox.id).join(id.as_str());
        let record = blank(&id, &sandbox, &config);
        let container = Container::new(record, sandbox.clone(), dir, Phase::Created);
        // Not under the sandbox's gate: an image may be unpacked for long, and the pod may have to go meanwhile.
        let made = make(core, &container, config).await;
        let gate = sandbox.gate.lock().await;
        let made = made.and_then(|()| ready(core, &sandbox));
        match made.and_then(|()| has_target(core, &container)) {
            Ok(()) => {
                core.registry.add_container(Arc::new(container));
                Ok(id.clone())
            }
            Err(error) => {
                drop(gate);
                undo(core, &container).await;
                Err(error)
            }
        }
    }
    .instrument(span)
    .await
}

/// A sandbox that is stopped, or gone, or has lost its network, gets no container.
fn ready(core: &Core, sandbox: &Sandbox) -> Result<()> {
    match core.view(sandbox).state {
        SandboxState::Ready => Ok(()),
        SandboxState::NotReady => Err(Error::Internal(format!(
            "sandbox {} is not ready",
            sandbox.id
        ))),
    }
}

/// Whose processes the container is to see runs. Asked last, as a failure of the start is for good.
fn has_target(core: &Core, container: &Container) -> Result<()> {
    let record = container.record();
    let sandbox = container.sandbox.record();
    match spec::pid_mode(&sandbox.config, &record.config) {
        NamespaceMode::Target(of) => target::pid_of(core, container, of)
            .map(drop)
            .map_err(Error::Create),
        _ => Ok(()),
    }
}

fn blank(id: &ContainerId, sandbox: &Sandbox, config: &ContainerConfig) -> ContainerRecord {
    let mut config = config.clone();
    // Values are secrets of the pod; they are needed in config.json and shown nowhere.
    config.envs.iter_mut().for_each(|(_, value)| value.clear());
    ContainerRecord {
        id: id.clone(),
        sandbox: sandbox.id.clone(),
        config,
        image_ref: String::new(),
        stop_signal: String::new(),
        identity: None,
        rootfs: Rootfs::Dir(String::new()),
        created_at: SystemTime::now(),
        started_at: None,
        failure: None,
    }
}

async fn make(core: &Arc<Core>, container: &Container, config: ContainerConfig) -> Result<()> {
    let image = image(core, &config).await?;
    check_filter(core, &config).await?;
    let devices = devices::resolve(&config).map_err(|error| Error::Create(chain(&error)))?;
    let (cgroup, resources) = (container.cgroup(), config.resources.clone());
    container
        .ahead
        .begin(core, cgroup, resources, devices.rules);
    let app_armor = core.app_armor.profile(&config.security).await;
    let app_armor = app_armor.map_err(|error| Error::Create(chain(&error)))?;
    let labels = labels(core, container, &config)?;
    let mount_label = labels.mount.clone();
    let parts = (devices.nodes, app_armor, labels);
    let spec = generate(core, container, &config, &image.facts, parts)?;
    prepare_log(container)?;
    prepare_sources(&config)?;
    propagation::check(&config.mounts).map_err(Error::Create)?;
    // Not the directories above it: when the sandbox's is gone, so is the sandbox.
    let made = fs::DirBuilder::new().mode(0o700).create(&container.dir);
    made.map_err(|error| files(&error))?;
    let rootfs = core
        .images
        .prepare(container.id.as_str(), &config.image)
        .instrument(info_span!("container.unpack", container = %container.id))
        .await
        .map_err(|error| Error::Create(format!("cannot prepare the root filesystem: {error}")))?;
    make_volumes(&core.layout.volumes(&container.id), &image.facts, &rootfs)
        .map_err(|error| files(&error))?;
    if let Some(label) = mount_label {
        relabel(core, container, &config, label).await?;
    }
    let recorded = container.update(|record| {
        record.rootfs = rootfs;
        record.image_ref = image.reference;
        let own = Some(config.stop_signal).filter(|signal| !signal.is_empty());
        record.stop_signal = own.unwrap_or(image.facts.stop_signal);
    });
    // The specification last: a container without it is not one.
    recorded
        .and_then(|()| record::write(&spec_file(&container.dir), &spec))
        .map_err(|error| files(&error))?;
    container.keep_spec(spec);
    Ok(())
}

/// Undoes what [`make`] has done so far.
async fn undo(core: &Core, container: &Container) {
    container.ahead.settle().await;
    let cgroup = core.cgroups.remove(&container.cgroup()).await;
    let cgroup = cgroup.map_err(|error| chain(&error));
    let removed = core
        .images
        .remove(container.id.as_str())
        .await
        .map_err(|error| chain(&error));
    let volumes = record::remove_dir(&core.layout.volumes(&container.id));
    let files = record::remove_dir(&container.dir);
    let volumes = volumes.and(files).map_err(|error| error.to_string());
    if let Err(error) = cgroup.and(removed).and(volumes) {
        tracing::warn!(container = %container.id, error, "container could not be undone");
    }
}

async fn image(core: &Core, config: &ContainerConfig) -> Result<RootfsImage> {
    let found = core.images.image(&config.image).await;
    let found = found.map_err(|error| Error::Create(format!("cannot read the image: {error}")))?;
    found.ok_or_else(|| Error::NotFound {
        kind: "image",
        id: config.image.clone(),
    })
}

/// Compiles the filter now, so that a broken profile is an error of the creation and the start is quick.
async fn check_filter(core: &Arc<Core>, config: &ContainerConfig) -> Result<()> {
    if config.security.privileged {
        return Ok(());
    }
    let capabilities = bounding(core, config)?;
    if core
        .filters
        .is_compiled(&config.security.seccomp, capabilities)
    {
        return Ok(());
    }
    let (core, profile) = (core.clone(), config.security.seccomp.clone());
    let compiled =
        tokio::task::spawn_blocking(move || core.filters.get(&profile, capabilities).map(drop));
    match compiled.await {
        Ok(done) => done.map_err(|error| Error::Create(chain(&error))),
        Err(error) => Err(Error::Internal(format!("seccomp: {error}"))),
    }
}

/// The bounding set of a container that is not privileged.
pub(super) fn bounding(core: &Core, config: &ContainerConfig) -> Result<u64> {
    let (add, drop) = (
        &config.security.add_capabilities,
        &config.security.drop_capabilities,
    );
    spec::capabilities::resolve(add, drop, core.host.capabilities)
        .map_err(|error| Error::Create(error.to_string()))
}

fn generate(
    core: &Core,
    container: &Container,
    config: &ContainerConfig,
    image: &ImageFacts,
    (devices, app_armor, labels): (Vec<oci_spec::runtime::LinuxDevice>, Option<String>, Labels),
) -> Result<oci_spec::runtime::Spec> {
    let sandbox = container.sandbox.record();
    let cgroup = child_cgroup(&sandbox.config.cgroup_parent, container.id.as_str());
    let host = HostFacts {
        capabilities: core.host.capabilities,
        hostname: core.hostname(&sandbox.config).to_owned(),
        netns: sandbox.netns.clone(),
        pause_pid: sandbox.pid,
        hostname_file: Some(hostname_file(&container.sandbox.dir)),
        extra_masked_paths: core.host.extra_masked_paths.clone(),
        devices,
        volumes: core.layout.volumes(&container.id),
        cgroup: format!("/{cgroup}"),
        app_armor,
        labels,
    };
    spec::generate(&sandbox.config, config, image, &host)
        .map_err(|error| Error::Create(error.to_string()))
}

/// The container's SELinux labels; none without SELinux, where a label means nothing and pods that have one run all the
/// same.
fn labels(core: &Core, container: &Container, config: &ContainerConfig) -> Result<Labels> {
    let Some(selinux) = &core.selinux else {
        return Ok(Labels::default());
    };
    let level = container.sandbox.record().selinux_level;
    let (options, privileged) = (&config.security.selinux_options, config.security.privileged);
    selinux
        .labels(options.as_ref(), level.as_deref(), privileged)
        .map_err(|error| Error::Create(chain(&error)))
}

/// Gives the label to what is the pod's own on the node: volumes, those of the image, the host name.
async fn relabel(
    core: &Core,
    container: &Container,
    config: &ContainerConfig,
    label: String,
) -> Result<()> {
    let of_pod = config.mounts.iter().filter(|mount| mount.selinux_relabel);
    let mut paths: Vec<PathBuf> = of_pod.map(|mount| mount.host_path.clone()).collect();
    paths.push(hostname_file(&container.sandbox.dir));
    let volumes = core.layout.volumes(&container.id);
    paths.extend(volumes.exists().then_some(volumes));
    let done = tokio::task::spawn_blocking(move || {
        paths
            .iter()
            .try_for_each(|path| selinux::relabel(path, &label))
    });
    match done.await {
        Ok(done) => done.map_err(|error| Error::Create(chain(&error))),
        Err(error) => Err(Error::Internal(format!("relabel: {error}"))),
    }
}

/// The log file's directory. The file itself is the shim's.
fn prepare_log(container: &Container) -> Result<()> {
    let record = container.record();
    let path = &record.config.log_path;
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    if !path
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        let path = path.display();
        return Err(Error::Create(format!(
            "log path {path} is not below the log directory"
        )));
    }
    let file = container.log_path();
    let Some(directory) = file.parent() else {
        return Ok(());
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|error| {
            Error::Create(format!(
                "cannot create log directory {}: {error}",
                directory.display()
            ))
        })
}

/// A host path without a type that does not exist becomes a directory, as users of containerd expect.
fn prepare_sources(config: &ContainerConfig) -> Result<()> {
    for mount in &config.mounts {
        let path = &mount.host_path;
        let made = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(path),
            other => other.map(drop),
        };
        made.map_err(|error| {
            Error::Create(format!("cannot use host path {}: {error}", path.display()))
        })?;
    }
    Ok(())
}

/// An empty directory for each volume of the image, with the owner and mode that the image gives the place.
fn make_volumes(base: &Path, image: &ImageFacts, rootfs: &Rootfs) -> io::Result<()> {
    let volumes = mounts::image_volumes(image).unwrap_or_default();
    for (destination, index) in volumes {
        let directory = base.join(index.to_string());
        record::create_private_dir(&directory)?;
        let like = owner_in(rootfs, Path::new(&destination));
        let (mode, uid, gid) = like.unwrap_or((0o755, 0, 0));
        std::os::unix::fs::chown(&directory, Some(uid), Some(gid))?;
        rustix::fs::chmod(&directory, rustix::fs::Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// Mode and owner of a directory of the image. Every layer is a wall, and links are not followed: the
/// image's bytes choose nothing outside.
fn owner_in(rootfs: &Rootfs, path: &Path) -> Option<(u32, u32, u32)> {
    use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
    let layers: Vec<PathBuf> = match rootfs {
        Rootfs::Overlay { lower, .. } => lower.iter().map(PathBuf::from).collect(),
        Rootfs::Dir(directory) => vec![PathBuf::from(directory)],
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    layers.iter().find_map(|layer| {
        let layer = open(layer, flags, Mode::empty()).ok()?;
        let found = openat2(layer, path, flags, Mode::empty(), resolve).ok()?;
        let stat = fstat(found).ok()?;
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        directory.then_some((stat.st_mode & 0o7777, stat.st_uid, stat.st_gid))
    })
}

fn files(error: &io::Error) -> Error {
    Error::Internal(format!("cannot write the container's files: {error}"))
}
