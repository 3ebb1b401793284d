//! The image store as its callers see it, against a registry in this process.

#[path = "image/tests/build.rs"]
mod build;
#[path = "image/tests/collecting.rs"]
mod collecting;
#[path = "image/tests/imports.rs"]
mod imports;
#[path = "image/tests/mounted.rs"]
mod mounted;
#[path = "image/tests/pulls.rs"]
mod pulls;
#[path = "image/tests/real.rs"]
mod real;
#[path = "image/tests/registry.rs"]
mod registry_stub;

use hanok_shim::protocol::Rootfs;

use super::*;

/// A store in a directory of its own.
fn store() -> (tempfile::TempDir, Images) {
    let dir = tempfile::tempdir().unwrap();
    let images = open(&dir);
    (dir, images)
}

fn open(dir: &tempfile::TempDir) -> Images {
    let mut config = ImagesConfig::new(dir.path());
    config.registries.certs_dir = None;
    config.registries.retry_pause = std::time::Duration::from_millis(5);
    config.registries.stall_timeout = std::time::Duration::from_secs(3);
    Images::open(config).unwrap()
}

/// The directories of a root filesystem, topmost first.
fn lower(rootfs: &Rootfs) -> Vec<PathBuf> {
    match rootfs {
        Rootfs::Overlay { lower, .. } => lower.iter().map(PathBuf::from).collect(),
        Rootfs::Dir(_) => panic!("not an overlay"),
    }
}

fn files_in(path: PathBuf) -> usize {
    std::fs::read_dir(path).unwrap().count()
}
