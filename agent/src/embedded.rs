//! The runtime in this process: images, network and runtime, opened together and locked against another agent.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use hanok_cni::Options as NetworkOptions;
use hanok_runtime::cgroup::DriverKind;
use hanok_runtime::image::{Images, ImagesConfig};
use hanok_runtime::registry::RegistryConfig;
use hanok_runtime::sandbox::network::CniNetwork;
use hanok_runtime::service::{Runtime, RuntimeConfig};

/// Name of the file whose lock says that somebody works in a directory.
const LOCK: &str = "agent.lock";

/// Where the runtime works.
#[derive(Debug, Clone)]
pub struct Places {
    /// What outlives a reboot: images, snapshots.
    pub state_dir: PathBuf,
    /// What dies with it: records, sockets, leases.
    pub run_dir: PathBuf,
    /// Pinned network namespaces.
    pub netns_dir: PathBuf,
    /// Who makes cgroups.
    pub cgroup_driver: DriverKind,
    /// Root of the cgroups; see [`hanok_runtime::cgroup::Cgroups::open`].
    pub cgroup_root: String,
    /// Localhost seccomp profiles.
    pub seccomp_dir: PathBuf,
    /// The shim's program.
    pub shim: PathBuf,
    /// The pause program.
    pub pause: PathBuf,
}

/// An open runtime. Dropping it leaves everything that runs as it is.
#[derive(Debug)]
pub struct Embedded {
    /// Images.
    pub images: Arc<Images>,
    /// Pod networks.
    pub network: Arc<CniNetwork>,
    /// Sandboxes and containers.
    pub runtime: Arc<Runtime>,
    _locks: [File; 2],
}

/// Opens the runtime: adopts what runs, undoes what was left half-made.
pub async fn open(
    places: Places,
    registries: RegistryConfig,
    network: NetworkOptions,
) -> anyhow::Result<Embedded> {
    for (flag, program) in [
        ("--shim-path", &places.shim),
        ("--pause-path", &places.pause),
    ] {
        if !program.is_file() {
            bail!(
                "{}: no such program: give its place by {flag}",
                program.display()
            );
        }
    }
    driver_is_here(places.cgroup_driver)?;
    let locks = [lock(&places.run_dir)?, lock(&places.state_dir)?];
    let images = ImagesConfig {
        registries,
        ..ImagesConfig::new(&places.state_dir)
    };
    let images = tokio::task::spawn_blocking(move || Images::open(images)).await?;
    let images =
        Arc::new(images.with_context(|| {
            format!("cannot open the images in {}", places.state_dir.display())
        })?);
    let network = Arc::new(CniNetwork::new(places.netns_dir, network));
    let config = RuntimeConfig {
        run_dir: places.run_dir,
        root: places.state_dir,
        shim: places.shim,
        pause: places.pause,
        cgroup_driver: places.cgroup_driver,
        cgroup_root: places.cgroup_root,
        seccomp_root: places.seccomp_dir,
        handlers: Default::default(),
    };
    let runtime = Runtime::open(config, images.clone(), network.clone()).await;
    let runtime = Arc::new(runtime.context("cannot open the runtime")?);
    Ok(Embedded {
        images,
        network,
        runtime,
        _locks: locks,
    })
}

/// Whether cgroups can be made in this way here. systemd makes that directory when it is the machine's init, see
/// sd_booted(3).
pub fn driver_is_here(driver: DriverKind) -> anyhow::Result<()> {
    if driver == DriverKind::Systemd && !Path::new("/run/systemd/system").is_dir() {
        bail!(
            "field cgroupDriver (--cgroup-driver): systemd, which does not run on this machine: boot with it, or set cgroupfs"
        );
    }
    Ok(())
}

/// Removes the lock file of a directory that is not used any more.
pub fn remove_lock(dir: &Path) {
    // Absent, or taken by the next one: neither matters.
    let _ = std::fs::remove_file(dir.join(LOCK));
}

/// Takes a directory for this process, and makes it when it is absent. Two agents in one would take each other's pods
/// for orphans.
fn lock(dir: &Path) -> anyhow::Result<File> {
    make(dir, 0o700)?;
    let path = dir.join(LOCK);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    hold(file, dir)
}

/// The same for a directory that is not ours alone: nothing is put into it, its own inode is locked.
pub fn claim(dir: &Path) -> anyhow::Result<File> {
    make(dir, 0o755)?;
    let opened = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    hold(opened, dir)
}

fn make(dir: &Path, mode: u32) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .with_context(|| format!("cannot create {}", dir.display()))
}

/// Locks an open file for as long as it stays open.
fn hold(file: File, dir: &Path) -> anyhow::Result<File> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "another hanok works in {}; give this one a directory of its own",
                dir.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", dir.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_kept_out_of_the_same_directory() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let first = lock(&run_dir).unwrap();
        let refused = lock(&run_dir).unwrap_err().to_string();
        assert!(refused.contains("another hanok works in"), "{refused}");
        drop(first);
        lock(&run_dir).unwrap();
        // Also out of one that is shared with others, where nothing is left behind.
        let logs = dir.path().join("logs");
        let first = claim(&logs).unwrap();
        let refused = claim(&logs).unwrap_err().to_string();
        assert!(refused.contains("another hanok works in"), "{refused}");
        drop(first);
        claim(&logs).unwrap();
        assert_eq!(std::fs::read_dir(&logs).unwrap().count(), 0);
    }
}
