//! What a pod's volumes hold: those that are mounts tell themselves, the others are walked.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hanok_runtime::api::DiskUsage;
use hanok_runtime::stats::disk::DiskCache;

use super::machine::{self, Filesystem};

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeStats {
    pub(super) name: String,
    /// What it holds; none while a long walk is on its way.
    pub(super) usage: Option<DiskUsage>,
    /// Where it lies.
    pub(super) filesystem: Option<Filesystem>,
    /// It is a filesystem of its own, so it takes nothing from the node's.
    pub(super) is_mount: bool,
}

/// The volumes below a pod's `volumes` directory: a directory for each plugin, in it one for each volume.
pub(super) async fn look(disk: &DiskCache, dir: &Path) -> Vec<VolumeStats> {
    let plugins = directories(dir);
    let mut found: Vec<PathBuf> = plugins
        .iter()
        .flat_map(|plugin| directories(plugin))
        .collect();
    found.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    futures::future::join_all(found.into_iter().map(|path| one(disk, dir, path))).await
}

async fn one(disk: &DiskCache, dir: &Path, path: PathBuf) -> VolumeStats {
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let is_mount = device(dir) != device(&path);
    let filesystem = machine::filesystem(&path);
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let usage = match (is_mount, filesystem) {
        (true, filesystem) => filesystem.map(|filesystem| DiskUsage {
            bytes: filesystem.used,
            inodes: filesystem.inodes.saturating_sub(filesystem.inodes_free),
        }),
        (false, _) => disk.usage(path).await,
    };
    VolumeStats {
        name,
        usage,
        filesystem,
        is_mount,
    }
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn volumes_are_named_and_walked() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = dir.path().join("volumes");
        for (volume, size) in [
            ("kubernetes.io~secret/b", 10),
            ("kubernetes.io~empty-dir/a", 90_000),
        ] {
            std::fs::create_dir_all(volumes.join(volume)).unwrap();
            std::fs::write(volumes.join(volume).join("file"), vec![1; size]).unwrap();
        }
        let found = look(&DiskCache::default(), &volumes).await;
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(found[0].usage.unwrap().bytes >= 90_000 && !found[0].is_mount);
        assert_eq!(found[1].usage.unwrap().inodes, 2);
        assert!(
            look(&DiskCache::default(), &dir.path().join("none"))
                .await
                .is_empty()
        );
    }
}
