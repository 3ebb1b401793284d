//! Images: pulled from registries or imported, unpacked when a container needs them, removed when nothing does.
//!
//! ```text
//! pull ─► registry ─► content store ─┬─► snapshotter ─► root filesystem of a container
//! import ─────────►  (blobs)         └─► record and names
//! ```
//! [`Images`] is the runtime's [`ImageService`] and its
//! [`RootfsSource`](crate::container::rootfs::RootfsSource). The state is on disk and only
//! there (see [`store`], [`crate::content`], [`crate::snapshot::overlay`]), so that `hanok image import`
//! and an agent can use it side by side.

mod error;
mod flight;
mod gc;
pub mod import;
mod layer;
pub mod manifest;
mod mounted;
mod pull;
pub mod reference;
mod rootfs;
pub mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;

use crate::api::{self, Credentials, Image, ImageService};
use crate::content::{ContentStore, Digest};
use crate::registry::{self, RegistryConfig};
use crate::snapshot::overlay::Overlay;
use crate::snapshot::{ChainId, Key, Snapshotter, chain_ids};
use crate::unpack::Limits;
pub(crate) use error::text_of;
pub use error::{ImageError, SharedError};
use flight::Flights;
use gc::Lock;
use manifest::ImageConfig;
use reference::Reference;
use store::{Record, Store};

/// Layers that are fetched or unpacked at once: enough to keep the network and two to four cores busy.
const PARALLEL_LAYERS: usize = 6;

/// Where images live and come from.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// Durable state; `content`, `images` and `snapshots` are made in it. `/var/lib/hanok`.
    pub root: PathBuf,
    /// Registries.
    pub registries: RegistryConfig,
    /// Unpack in the pass that pulls. Otherwise the first container does.
    pub unpack_on_pull: bool,
    /// What one layer may take.
    pub limits: Limits,
}

impl ImagesConfig {
    /// The defaults, with state at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            registries: RegistryConfig::default(),
            unpack_on_pull: true,
            limits: Limits::default(),
        }
    }
}

/// The image store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Images {
    core: Arc<Core>,
}

#[derive(Debug)]
pub(crate) struct Core {
    root: PathBuf,
    content: ContentStore,
    store: Store,
    snapshotter: Arc<dyn Snapshotter>,
    registry: registry::Client,
    unpack_on_pull: bool,
    limits: Limits,
    pulls: Flights<Digest, Result<Image, SharedError>>,
    layers: Flights<(bool, Digest), Result<(), SharedError>>,
    permits: Semaphore,
    gc_pending: AtomicBool,
    /// Held by whoever mounts or unmounts an image.
    mounting: tokio::sync::Mutex<()>,
}

impl Core {
    async fn permit(&self) -> Result<SemaphorePermit<'_>, ImageError> {
        self.permits.acquire().await.map_err(|_| ImageError::Closed)
    }

    /// Keeps the collector away while it is held.
    async fn lock(&self) -> Result<Lock, ImageError> {
        let root = self.root.clone();
        Ok(spawn_blocking(move || Lock::shared(&root)).await??)
    }
}

impl Images {
    /// Opens the store, making what is missing. What is broken is set aside and logged; it is no reason
    /// not to start. Blocks; to be called once, early.
    pub fn open(config: ImagesConfig) -> Result<Self, ImageError> {
        let content = ContentStore::open(&config.root.join("content"))?;
        let (store, mut broken) = Store::open(&config.root.join("images"))?;
        let overlay = Overlay::open(&config.root.join("snapshots/overlay"), config.limits)?;
        if let Some(_lock) = Lock::alone(&config.root)? {
            content.sweep()?;
            store.sweep()?;
            broken.extend(overlay.sweep()?);
        }
        for path in broken {
            tracing::warn!(path = %path.display(), "set aside a broken piece of the image store");
        }
        let core = Core {
            root: config.root,
            content,
            store,
            snapshotter: Arc::new(overlay),
            registry: registry::Client::new(config.registries),
            unpack_on_pull: config.unpack_on_pull,
            limits: config.limits,
            pulls: Flights::default(),
            layers: Flights::default(),
            permits: Semaphore::new(PARALLEL_LAYERS),
            gc_pending: AtomicBool::new(false),
            mounting: tokio::sync::Mutex::default(),
        };
        Ok(Self {
            core: Arc::new(core),
        })
    }

    /// Runs a blocking query of the store.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Core) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let core = Arc::clone(&self.core);
        spawn_blocking(move || query(&core)).await?
    }

    /// An image's config.
    pub async fn config(&self, id: &str) -> Result<ImageConfig, ImageError> {
        let id = id.to_owned();
        self.query(move |core| {
            let record = find(core, &id)?.ok_or(ImageError::NotFound(id))?;
            let bytes = core.content.read(&record.id, manifest::MAX_DOCUMENT)?;
            Ok(manifest::parse_config(&bytes)?)
        })
        .await
    }

    /// Removes blobs and layers that nothing refers to (any more).
    pub async fn collect(&self) -> Result<(), ImageError> {
        gc::collect(&self.core).await
    }
}

/// An image by id (with or without `sha256:`) or by any reference.
fn find(core: &Core, text: &str) -> Result<Option<Record>, ImageError> {
    let id = text.parse().or_else(|_| Digest::from_hex(text));
    if let Ok(id) = id {
        return Ok(core.store.record(&id));
    }
    let Ok(reference) = text.parse::<Reference>() else {
        return Ok(None);
    };
    Ok(core.store.resolve(&reference))
}

/// Whether a container can be made from it: each layer is unpacked, or its blob is here.
fn is_whole(core: &Core, record: &Record) -> bool {
    let diffs: Vec<Digest> = record.layers.iter().map(|layer| layer.diff_id).collect();
    let chain = chain_ids(&diffs);
    let has = |chain: &ChainId| core.snapshotter.usage(Key::Layer(chain)).is_ok();
    let layers =
        chain.last().is_none_or(has)
            || record.layers.iter().zip(&chain).all(|(layer, chain)| {
                has(chain) || core.content.size(&layer.blob) == Some(layer.size)
            });
    layers && core.content.size(&record.id).is_some()
}

/// The image as the API gives it.
fn describe(record: &Record, names: &[store::Name]) -> Image {
    let own = names.iter().filter(|name| name.image == record.id);
    let (digests, tags) = own
        .map(|name| name.reference.clone())
        .partition(|reference| reference.contains('@'));
    Image {
        id: record.id.to_string(),
        repo_tags: tags,
        repo_digests: digests,
        size: record.size,
        user: record.user.clone(),
        stop_signal: record.stop_signal.clone(),
        pinned: record.pinned,
    }
}

#[async_trait]
impl ImageService for Images {
    async fn pull_image(&self, reference: &str, credentials: &[Credentials]) -> api::Result<Image> {
        self.pull(reference, credentials).await
    }

    async fn image_status(&self, reference: &str) -> api::Result<Option<Image>> {
        let reference = reference.to_owned();
        let found = self.query(move |core| {
            let record = find(core, &reference)?.filter(|record| is_whole(core, record));
            match record {
                Some(record) => Ok(Some(describe(&record, &core.store.names()?))),
                None => Ok(None),
            }
        });
        Ok(found.await?)
    }

    async fn list_images(&self) -> api::Result<Vec<Image>> {
        let list = self.query(|core| {
            let names = core.store.names()?;
            let records = core.store.records()?;
            let whole = records.iter().filter(|record| is_whole(core, record));
            Ok(whole.map(|record| describe(record, &names)).collect())
        });
        Ok(list.await?)
    }

    async fn remove_image(&self, reference: &str) -> api::Result<()> {
        let reference = reference.to_owned();
        self.query(move |core| remove(core, &reference)).await?;
        Ok(gc::collect(&self.core).await?)
    }

    async fn unpack_image(&self, id: &str) -> api::Result<()> {
        Ok(self.unpack(id).await?)
    }

    async fn mount_image(&self, id: &str, target: &Path) -> api::Result<()> {
        Ok(self.mount_on(id, target).await?)
    }

    async fn unmount_images(&self, dir: &Path) -> api::Result<()> {
        Ok(self.unmount_below(dir).await?)
    }
}

/// Removes a name, or with an id all names; then the image, when it has none left.
fn remove(core: &Core, text: &str) -> Result<(), ImageError> {
    let Some(record) = find(core, text)? else {
        return Ok(());
    };
    let names = core.store.names()?;
    let mut own: Vec<&str> = names
        .iter()
        .filter(|name| name.image == record.id)
        .map(|name| name.reference.as_str())
        .collect();
    if let Ok(reference) = text.parse::<Reference>() {
        let (removed, repository) = (reference.to_string(), reference.name());
        own.retain(|name| *name != removed);
        core.store.remove_name(&removed)?;
        // A digest alone keeps nothing alive once the last tag of its repository has been removed.
        let tagged = own
            .iter()
            .any(|name| name.starts_with(&format!("{repository}:")));
        if !tagged && reference.tag().is_some() {
            let (gone, kept): (Vec<&str>, Vec<&str>) = own
                .iter()
                .partition(|name| name.starts_with(&format!("{repository}@")));
            gone.iter()
                .try_for_each(|name| core.store.remove_name(name))?;
            own = kept;
        }
        if !own.is_empty() {
            return Ok(());
        }
    }
    own.iter()
        .try_for_each(|name| core.store.remove_name(name))?;
    Ok(core.store.remove_record(&record.id)?)
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
