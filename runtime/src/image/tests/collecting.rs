//! What nobody needs, when that is said while somebody adds: it goes when the last of them is done, or has given up.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::build::two_layers;
use super::imports::{layout_files, write_layout};
use super::registry_stub::{Registry, silent};
use super::*;
use crate::image::gc::{self, Lock};

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), wait).await;
    waited.expect("it comes about");
}

#[tokio::test]
async fn what_nobody_needs_goes_after_an_unpack_that_is_dropped() {
    for for_a_container in [false, true] {
        let scratch = tempfile::tempdir().unwrap();
        write_layout(
            scratch.path(),
            &layout_files(&two_layers(), "example.com/app:1"),
        );
        let (root, images) = store();
        let found = images.import(scratch.path(), None).await.unwrap();
        // Whoever unpacks gets no further than this.
        images.core.permits.forget_permits(PARALLEL_LAYERS);
        let (own, id) = (images.clone(), found[0].id.clone());
        let unpacking = tokio::spawn(async move {
            match for_a_container {
                true => own.prepare_rootfs("c", &id).await.map(drop),
                false => own.unpack(&id).await,
            }
        });
        until(|| Lock::alone(root.path()).unwrap().is_none()).await;
        images.remove_image("example.com/app:1").await.unwrap();
        let blobs = || images.core.content.list().unwrap().len();
        assert_ne!(blobs(), 0);
        unpacking.abort();
        until(|| blobs() == 0).await;
    }
}

#[tokio::test]
async fn what_nobody_needs_goes_after_a_pull_that_is_dropped() {
    let scratch = tempfile::tempdir().unwrap();
    let files = layout_files(&two_layers(), "example.com/app:1");
    write_layout(scratch.path(), &files);
    let (root, images) = store();
    images.import(scratch.path(), None).await.unwrap();
    let registry = Registry::start().await;
    registry.push("app", "1", &two_layers());
    registry.hook(|seen| seen.path.contains("/manifests/").then(silent));
    let (own, name) = (images.clone(), registry.name("app:1"));
    let pull = || {
        let (own, name) = (own.clone(), name.clone());
        tokio::spawn(async move { own.pull_image(&name, &[]).await })
    };
    let (first, second) = (pull(), pull());
    until(|| Lock::alone(root.path()).unwrap().is_none()).await;
    images.remove_image("example.com/app:1").await.unwrap();
    let blobs = || images.core.content.list().unwrap().len();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_ne!(blobs(), 0, "somebody pulls still");
    second.abort();
    until(|| blobs() == 0).await;
}

#[test]
fn who_wants_to_collect_during_a_sweep_gets_another_one() {
    let (_root, images) = store();
    let sweeps = Cell::new(0);
    images.core.gc_pending.store(true, Ordering::SeqCst);
    let swept = gc::while_pending(&images.core, |core| {
        if sweeps.replace(sweeps.get() + 1) == 0 {
            let own = Arc::clone(&images.core);
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(gc::collect(&own)).unwrap();
        }
        assert!(Lock::alone(&core.root).unwrap().is_none());
        Ok(())
    });
    swept.unwrap();
    assert_eq!(sweeps.get(), 2);
    assert!(!images.core.gc_pending.load(Ordering::SeqCst));
}
