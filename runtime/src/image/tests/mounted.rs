//! Images as volumes.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::time::timeout;

use super::build::{Built, two_layers};
use super::imports::{layout_files, write_layout};
use super::*;
use crate::container::rootfs::RootfsSource as _;
use crate::image::gc::Lock;

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Leaves no mount, however the test ends.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A store with an image of two layers.
async fn imported() -> (Built, tempfile::TempDir, Images) {
    let built = two_layers();
    let layout = tempfile::tempdir().unwrap();
    write_layout(layout.path(), &layout_files(&built, "example.com/app:1"));
    let (root, images) = store();
    images.import(layout.path(), None).await.unwrap();
    (built, root, images)
}

#[tokio::test]
async fn root_a_mounted_image_is_read_only_and_keeps_its_layers_until_it_is_unmounted() {
    let (built, root, images) = imported().await;
    let target = root.path().join("pods/one/volume");
    let _guard = Unmounted(target.clone());
    for _ in 0..2 {
        images.mount_on(&built.id(), &target).await.unwrap();
    }
    assert_eq!(fs::read(target.join("etc/new")).unwrap(), b"new");
    assert!(!target.join("etc/old").exists());
    let refused = fs::write(target.join("etc/new"), "other").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));

    images.remove_image("example.com/app:1").await.unwrap();
    let layers = root.path().join("snapshots/overlay/layers");
    assert_eq!(files_in(layers.clone()), 2);
    assert_eq!(fs::read(target.join("bin/app")).unwrap(), b"one");

    // Whoever comes after a restart knows it as well.
    let images = open(&root);
    let pods = root.path().join("pods");
    images.unmount_below(&pods.join("two")).await.unwrap();
    assert_eq!(fs::read(target.join("bin/app")).unwrap(), b"one");
    for _ in 0..2 {
        images.unmount_below(&pods.join("one")).await.unwrap();
    }
    assert_eq!(files_in(target.clone()), 0);
    images.collect().await.unwrap();
    assert_eq!(files_in(layers), 0);
}

#[tokio::test]
async fn root_a_mount_that_nobody_waits_for_leaves_nothing_once_it_is_unmounted() {
    let (built, root, images) = imported().await;
    let target = root.path().join("pods/one/volume");
    let _guard = Unmounted(target.clone());
    // Nobody prepares anything as long as somebody collects.
    let collecting = Lock::alone(root.path()).unwrap().unwrap();
    let (own, id, at) = (images.clone(), built.id(), target.clone());
    let mounting = tokio::spawn(async move { own.mount_on(&id, &at).await });
    let records = root.path().join("image-mounts");
    let recorded = async {
        while !records.exists() || files_in(records.clone()) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, recorded).await.expect("it is begun");
    // It is on its way to the next step.
    tokio::task::yield_now().await;
    mounting.abort();
    let pods = root.path().join("pods");
    let unmounting = images.unmount_below(&pods);
    tokio::pin!(unmounting);
    let early = timeout(Duration::from_millis(100), &mut unmounting).await;
    assert!(early.is_err(), "half of a mount is unmounted");
    drop(collecting);
    timeout(PATIENCE, unmounting)
        .await
        .expect("its turn comes")
        .unwrap();
    assert_eq!(files_in(records), 0);
    assert_eq!(images.keys().await.unwrap(), Vec::<String>::new());
    assert_eq!(files_in(target), 0);
}
