//! Root filesystems of containers, made from images.

use std::sync::Arc;

use async_trait::async_trait;
use hanok_shim::protocol::Rootfs;
use tokio::task::spawn_blocking;
use tracing::Instrument;

use super::gc::Lock;
use super::store::Record;
use super::{Core, ImageError, Images, describe, find, gc, layer, manifest, text_of};
use crate::container::rootfs::{RootfsError, RootfsImage, RootfsSource};
use crate::content::Digest;
use crate::snapshot::{ChainId, Key, SnapshotError, Usage, chain_ids};

impl Images {
    /// Unpacks what is not unpacked yet. Returns the chain ids, topmost first.
    pub async fn ensure(&self, id: &str) -> Result<Vec<ChainId>, ImageError> {
        let id = id.to_owned();
        let record = self
            .query(move |core| find(core, &id)?.ok_or(ImageError::NotFound(id)))
            .await?;
        let diffs: Vec<Digest> = record.layers.iter().map(|layer| layer.diff_id).collect();
        let mut chain = chain_ids(&diffs);
        chain.reverse();
        let span = tracing::info_span!("image.unpack", image = %record.id);
        layer::bring(&self.core, &record.layers, &None, true)
            .instrument(span)
            .await
            .map_err(ImageError::Shared)?;
        self.sync_later();
        Ok(chain)
    }

    /// Makes unpacked layers safe from a power cut, while others go on.
    pub(super) fn sync_later(&self) {
        let snapshotter = Arc::clone(&self.core.snapshotter);
        drop(spawn_blocking(move || {
            if let Err(error) = snapshotter.sync() {
                let error = text_of(&error);
                tracing::warn!(
                    error,
                    "cannot sync unpacked layers; they are unpacked again after a reboot"
                );
            }
        }));
    }

    /// Unpacks what is not unpacked yet, and keeps it until then. Dropped, it stops.
    pub async fn unpack(&self, image: &str) -> Result<(), ImageError> {
        let id = image.to_owned();
        let unpacked = self.query(move |core| {
            let record = find(core, &id)?.ok_or(ImageError::NotFound(id))?;
            Ok(is_unpacked(core, &record))
        });
        if unpacked.await? {
            return Ok(());
        }
        // Also when this is dropped, and after the lock.
        let _collecting = gc::Later(Arc::clone(&self.core));
        let _lock = self.core.lock().await?;
        self.ensure(image).await.map(drop)
    }

    /// Makes a container's root filesystem from an image, unpacking what is missing.
    pub async fn prepare_rootfs(&self, container: &str, image: &str) -> Result<Rootfs, ImageError> {
        let (name, id) = (container.to_owned(), image.to_owned());
        // The usual case, everything unpacked, takes one turn on a blocking thread, which goes on when this is dropped.
        let collecting = gc::Later(Arc::clone(&self.core));
        let ready = self.query(move |core| {
            let ready = prepare_unpacked(core, &name, &id);
            drop(collecting);
            ready
        });
        if let Some(rootfs) = ready.await? {
            return Ok(rootfs);
        }
        // Also when this is dropped, and after the lock.
        let _collecting = gc::Later(Arc::clone(&self.core));
        let _lock = self.core.lock().await?;
        let layers = self.ensure(image).await?;
        let container = container.to_owned();
        self.query(move |core| {
            core.snapshotter.prepare(&container, &layers)?;
            Ok(core.snapshotter.mounts(&container)?)
        })
        .await
    }

    /// The root filesystem of a container that has one.
    pub async fn rootfs(&self, container: &str) -> Result<Rootfs, ImageError> {
        let container = container.to_owned();
        self.query(move |core| Ok(core.snapshotter.mounts(&container)?))
            .await
    }

    /// What a container has written.
    pub async fn rootfs_usage(&self, container: &str) -> Result<Usage, ImageError> {
        let container = container.to_owned();
        self.query(move |core| Ok(core.snapshotter.usage(Key::Container(&container))?))
            .await
    }

    /// Removes a container's root filesystem. Absent is success.
    pub async fn remove_rootfs(&self, container: &str) -> Result<(), ImageError> {
        let container = container.to_owned();
        self.query(move |core| Ok(core.snapshotter.remove(Key::Container(&container))?))
            .await
    }
}

/// Whether all layers are.
fn is_unpacked(core: &Core, record: &Record) -> bool {
    let diffs: Vec<Digest> = record.layers.iter().map(|layer| layer.diff_id).collect();
    let chain = chain_ids(&diffs);
    let unpacked = |layer| core.snapshotter.usage(Key::Layer(layer)).is_ok();
    chain.iter().all(unpacked)
}

/// The root filesystem, if the image's layers are all unpacked.
fn prepare_unpacked(core: &Core, container: &str, id: &str) -> Result<Option<Rootfs>, ImageError> {
    let _lock = Lock::shared(&core.root)?;
    let record = find(core, id)?.ok_or_else(|| ImageError::NotFound(id.to_owned()))?;
    let diffs: Vec<Digest> = record.layers.iter().map(|layer| layer.diff_id).collect();
    let mut chain = chain_ids(&diffs);
    chain.reverse();
    match core.snapshotter.prepare(container, &chain) {
        Ok(()) => Ok(Some(core.snapshotter.mounts(container)?)),
        Err(SnapshotError::MissingLayer(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[async_trait]
impl RootfsSource for Images {
    async fn image(&self, id: &str) -> Result<Option<RootfsImage>, RootfsError> {
        let id = id.to_owned();
        let found = self.query(move |core| {
            let Some(record) = find(core, &id)? else {
                return Ok(None);
            };
            let bytes = core.content.read(&record.id, manifest::MAX_DOCUMENT)?;
            let config = manifest::parse_config(&bytes)?;
            let image = describe(&record, &core.store.names()?);
            let reference = image.repo_digests.into_iter().next().unwrap_or(image.id);
            Ok(Some(RootfsImage {
                reference,
                facts: config.facts,
            }))
        });
        found.await.map_err(|error| RootfsError(text_of(&error)))
    }

    async fn prepare(&self, key: &str, image: &str) -> Result<Rootfs, RootfsError> {
        let prepared = self.prepare_rootfs(key, image).await;
        prepared.map_err(|error| RootfsError(text_of(&error)))
    }

    async fn remove(&self, key: &str) -> Result<(), RootfsError> {
        let removed = self.remove_rootfs(key).await;
        removed.map_err(|error| RootfsError(text_of(&error)))
    }

    async fn keys(&self) -> Result<Vec<String>, RootfsError> {
        let keys = self.query(|core| {
            let holdings = core.snapshotter.list()?;
            Ok(holdings
                .containers
                .into_iter()
                .map(|(name, _)| name)
                .collect())
        });
        keys.await.map_err(|error| RootfsError(text_of(&error)))
    }
}
