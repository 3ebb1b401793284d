//! Images as volumes.

use std::fs;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::build::two_layers;
use super::imports::{layout_files, write_layout};
use super::*;

/// Leaves no mount, however the test ends.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn root_a_mounted_image_is_read_only_and_keeps_its_layers_until_it_is_unmounted() {
    let built = two_layers();
    let layout = tempfile::tempdir().unwrap();
    write_layout(layout.path(), &layout_files(&built, "example.com/app:1"));
    let (root, images) = store();
    images.import(layout.path(), None).await.unwrap();
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
