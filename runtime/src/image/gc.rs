//! Removes what no image and no container needs any more.
//!
//! Whoever adds something holds the store's lock, shared; the collector takes it alone or comes back when
//! the last of them is done. The lock is a file lock: other processes count.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Core, ImageError, text_of};
use crate::content::{self, Digest};
use crate::snapshot::{Key, chain_ids};

/// Holds the store's lock until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it unlocks")] File);

fn lock_file(root: &Path) -> Result<File, content::ContentError> {
    let path = root.join("images/lock");
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(content::ContentError::io("open", &path))
}

impl Lock {
    /// For adding; waits while somebody collects.
    pub(crate) fn shared(root: &Path) -> Result<Self, content::ContentError> {
        let file = lock_file(root)?;
        file.lock_shared()
            .map_err(content::ContentError::io("lock", &root.join("images/lock")))?;
        Ok(Self(file))
    }

    /// For collecting; none when somebody adds.
    pub(crate) fn alone(root: &Path) -> Result<Option<Self>, content::ContentError> {
        let file = lock_file(root)?;
        Ok(file.try_lock().is_ok().then_some(Self(file)))
    }
}

/// Collects now if nobody adds; else whoever adds will when done, see [`Later`].
pub(crate) async fn collect(core: &Arc<Core>) -> Result<(), ImageError> {
    core.gc_pending.store(true, Ordering::SeqCst);
    if_pending(core).await
}

/// Collects if somebody wanted to and could not.
async fn if_pending(core: &Arc<Core>) -> Result<(), ImageError> {
    if !core.gc_pending.load(Ordering::SeqCst) {
        return Ok(());
    }
    let core = Arc::clone(core);
    tokio::task::spawn_blocking(move || while_pending(&core, sweep)).await?
}

/// Sweeps once more for who wanted to meanwhile: nobody else can while this one does.
pub(super) fn while_pending(
    core: &Core,
    sweep: impl Fn(&Core) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    while core.gc_pending.load(Ordering::SeqCst) {
        let Some(_lock) = Lock::alone(&core.root)? else {
            return Ok(());
        };
        core.gc_pending.store(false, Ordering::SeqCst);
        sweep(core)?;
    }
    Ok(())
}

/// Collects when it is dropped, if somebody wanted to and could not; nobody waits for it.
pub(super) struct Later(pub(super) Arc<Core>);

impl Drop for Later {
    fn drop(&mut self) {
        // Who wants to from now on can.
        if !self.0.gc_pending.load(Ordering::SeqCst) {
            return;
        }
        // An agent that ends collects when it is back.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let core = Arc::clone(&self.0);
        runtime.spawn(async move {
            if let Err(error) = if_pending(&core).await {
                tracing::warn!(error = text_of(&error), "cannot collect unused images");
            }
        });
    }
}

fn sweep(core: &Core) -> Result<(), ImageError> {
    let records = core.store.records()?;
    let mut blobs = HashSet::new();
    let mut layers = HashSet::new();
    for record in &records {
        blobs.insert(record.id);
        blobs.extend(&record.documents);
        blobs.extend(record.layers.iter().map(|layer| layer.blob));
        let diffs: Vec<Digest> = record.layers.iter().map(|layer| layer.diff_id).collect();
        layers.extend(chain_ids(&diffs));
    }
    let holdings = core.snapshotter.list()?;
    for (_, used) in &holdings.containers {
        layers.extend(used);
    }
    for layer in holdings
        .layers
        .iter()
        .filter(|layer| !layers.contains(layer))
    {
        core.snapshotter.remove(Key::Layer(layer))?;
    }
    for blob in core
        .content
        .list()?
        .iter()
        .filter(|blob| !blobs.contains(blob))
    {
        core.content.remove(blob)?;
    }
    Ok(())
}
