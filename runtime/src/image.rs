//! Images: pulled from registries or imported, unpacked when a container needs them, removed when nothing does.
//!
//! ```text
//! pull ─► registry ─► content store ─┬─► snapshotter ─► root filesystem of a container
//! import ─────────►  (blobs)         └─► record and names
//! ```
//! [`Images`] is the runtime's [`ImageService`] and its [`RootfsSource`]. The state is on disk and only
//! there (see [`store`], [`crate::content`], [`crate::snapshot::overlay`]), so that `hanok image import`
//! and an agent can use it side by side.

pub mod import;
pub mod manifest;
pub mod reference;
pub mod store;

mod flight;
mod gc;
mod layer;
mod pull;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use hanok_shim::protocol::Rootfs;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tracing::Instrument;

use crate::api::{self, Credentials, Image, ImageService};
use crate::container::rootfs::{RootfsError, RootfsImage, RootfsSource};
use crate::content::{self, ContentStore, Digest};
use crate::registry::{self, RegistryConfig};
use crate::snapshot::overlay::Overlay;
use crate::snapshot::{self, ChainId, Key, Snapshotter, Usage, chain_ids};
use crate::unpack::{Limits, pipe};
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

/// What can go wrong with an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What a reference points to cannot be found out.
    #[error("failed to resolve reference {reference:?}")]
    Resolve {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: registry::Error,
    },
    /// The registry, or the way to it.
    #[error(transparent)]
    Registry(#[from] registry::Error),
    /// A document of the image.
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    /// The content store.
    #[error(transparent)]
    Content(#[from] content::Error),
    /// Getting a layer in.
    #[error(transparent)]
    Pipe(#[from] pipe::Error),
    /// Unpacking.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// An archive or layout that cannot be imported.
    #[error(transparent)]
    Import(#[from] import::Error),
    /// A layer's content is not what the config says.
    #[error("layer {blob} unpacks to {got}, the image config says {want}")]
    DiffId {
        /// The blob.
        blob: Digest,
        /// By config.
        want: Digest,
        /// In fact.
        got: Digest,
    },
    /// Nothing in an index runs here.
    #[error("no match for platform {os}/{architecture} in manifest {index}: not found")]
    NoPlatform {
        /// GOOS.
        os: String,
        /// GOARCH.
        architecture: String,
        /// The index.
        index: Digest,
    },
    /// Indexes in indexes.
    #[error("image index {0} nests too deep or in a circle")]
    Nested(Digest),
    /// No such image.
    #[error("image {0:?} not found")]
    NotFound(String),
    /// Somebody else's work that this one waited for.
    #[error(transparent)]
    Shared(SharedError),
    /// A thread that works for us is gone.
    #[error("a worker of the image store failed")]
    Join(#[from] tokio::task::JoinError),
    /// The store is being closed.
    #[error("the image store is closed")]
    Closed,
}

/// An error of work that several callers waited for.
pub type SharedError = Arc<Error>;

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
}

impl Core {
    async fn permit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.permits.acquire().await.map_err(|_| Error::Closed)
    }

    /// Keeps the collector away while it is held.
    async fn lock(&self) -> Result<Lock, Error> {
        let root = self.root.clone();
        Ok(spawn_blocking(move || Lock::shared(&root)).await??)
    }
}

impl Images {
    /// Opens the store, making what is missing. What is broken is set aside and logged; it is no reason
    /// not to start. Blocks; to be called once, early.
    pub fn open(config: ImagesConfig) -> Result<Self, Error> {
        let content = ContentStore::open(&config.root.join("content"))?;
        let (store, mut broken) = Store::open(&config.root.join("images"))?;
        let overlay = Overlay::open(&config.root.join("snapshots/overlay"), config.limits)?;
        if let Some(_lock) = Lock::alone(&config.root)? {
            content.sweep()?;
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
        };
        Ok(Self {
            core: Arc::new(core),
        })
    }

    /// Runs a blocking query of the store.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Core) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let core = Arc::clone(&self.core);
        spawn_blocking(move || query(&core)).await?
    }

    /// An image's config.
    pub async fn config(&self, id: &str) -> Result<ImageConfig, Error> {
        let id = id.to_owned();
        self.query(move |core| {
            let record = find(core, &id)?.ok_or(Error::NotFound(id))?;
            let bytes = core.content.read(&record.id, manifest::MAX_DOCUMENT)?;
            Ok(manifest::parse_config(&bytes)?)
        })
        .await
    }

    /// Unpacks what is not unpacked yet. Returns the chain ids, topmost first.
    pub async fn ensure(&self, id: &str) -> Result<Vec<ChainId>, Error> {
        let id = id.to_owned();
        let record = self
            .query(move |core| find(core, &id)?.ok_or(Error::NotFound(id)))
            .await?;
        let diffs: Vec<Digest> = record.layers.iter().map(|layer| layer.diff_id).collect();
        let mut chain = chain_ids(&diffs);
        chain.reverse();
        let (top, core) = (chain.first().copied(), Arc::clone(&self.core));
        let has = move |top: ChainId| core.snapshotter.usage(Key::Layer(&top)).is_ok();
        if top.is_none_or(has) {
            return Ok(chain);
        }
        let span = tracing::info_span!("image.unpack", image = %record.id);
        layer::bring(&self.core, &record.layers, &None, true)
            .instrument(span)
            .await
            .map_err(Error::Shared)?;
        self.sync_later();
        Ok(chain)
    }

    /// Makes unpacked layers safe from a power cut, while others go on.
    fn sync_later(&self) {
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

    /// Makes a container's root filesystem from an image, unpacking what is missing.
    pub async fn prepare_rootfs(&self, container: &str, image: &str) -> Result<Rootfs, Error> {
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
    pub async fn rootfs(&self, container: &str) -> Result<Rootfs, Error> {
        let container = container.to_owned();
        self.query(move |core| Ok(core.snapshotter.mounts(&container)?))
            .await
    }

    /// What a container has written.
    pub async fn rootfs_usage(&self, container: &str) -> Result<Usage, Error> {
        let container = container.to_owned();
        self.query(move |core| Ok(core.snapshotter.usage(Key::Container(&container))?))
            .await
    }

    /// Removes a container's root filesystem. Absent is success.
    pub async fn remove_rootfs(&self, container: &str) -> Result<(), Error> {
        let container = container.to_owned();
        self.query(move |core| Ok(core.snapshotter.remove(Key::Container(&container))?))
            .await
    }

    /// Removes blobs and layers that nothing refers to (any more).
    pub async fn collect(&self) -> Result<(), Error> {
        gc::collect(&self.core).await
    }
}

/// An image by id (with or without `sha256:`) or by any reference.
fn find(core: &Core, text: &str) -> Result<Option<Record>, Error> {
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

/// An error with its whole chain of causes.
pub(crate) fn text_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

impl From<Error> for api::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound(id) => api::Error::NotFound { kind: "image", id },
            other => api::Error::Internal(text_of(&other)),
        }
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
}

/// Removes a name, or with an id all names; then the image, when it has none left.
fn remove(core: &Core, text: &str) -> Result<(), Error> {
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

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
