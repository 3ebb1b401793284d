//! Pulls an image: reference → document → this platform's manifest → config → layers → record and names.

use std::sync::Arc;

use futures::FutureExt;
use tokio::task::spawn_blocking;
use tracing::Instrument;

use super::layer;
use super::manifest::{self, Descriptor, Document, ImageConfig, MAX_DOCUMENT, Manifest, Platform};
use super::reference::Reference;
use super::store::{Layer, Record};
use super::{Core, ImageError, Images, describe, gc, text_of};
use crate::api::{self, Credentials, Image};
use crate::content::{Digest, Hasher};
use crate::registry::{Ask, Session};

/// Deepest nesting of indexes.
const MAX_INDEXES: usize = 2;

impl Images {
    /// See [`api::ImageService::pull_image`].
    pub(super) async fn pull(&self, text: &str, credentials: &[Credentials]) -> api::Result<Image> {
        let reference: Reference =
            text.parse()
                .map_err(
                    |e: super::reference::InvalidReference| api::Error::InvalidReference {
                        reference: text.to_owned(),
                        message: e.to_string(),
                    },
                )?;
        let shown = reference.to_string();
        let span = tracing::info_span!("image.pull", image = shown);
        let key = flight_key(&reference, credentials);
        let begin = || {
            let (core, credentials) = (Arc::clone(&self.core), credentials.to_vec());
            let pull = async move {
                pull(&core, &reference, &credentials)
                    .await
                    .map_err(Arc::new)
            };
            pull.instrument(span).boxed()
        };
        // Also when this is dropped, and after the lock: the last of those who share a pull.
        let _collecting = gc::Later(Arc::clone(&self.core));
        let outcome = self.core.pulls.join(key, begin).0.await;
        if self.core.unpack_on_pull {
            self.sync_later();
        }
        outcome.map_err(|error| api::Error::Pull {
            reference: shown,
            message: text_of(&*error),
        })
    }
}

/// Callers with other credentials must not share what these may see.
fn flight_key(reference: &Reference, credentials: &[Credentials]) -> Digest {
    let mut hasher = Hasher::default();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    add(&reference.to_string());
    for one in credentials {
        match one {
            Credentials::Basic { username, password } => {
                add("basic");
                add(username);
                add(password);
            }
            Credentials::IdentityToken(token) => {
                add("identity");
                add(token);
            }
            Credentials::RegistryToken(token) => {
                add("registry");
                add(token);
            }
        }
    }
    hasher.finish()
}

async fn pull(
    core: &Arc<Core>,
    reference: &Reference,
    credentials: &[Credentials],
) -> Result<Image, ImageError> {
    let _lock = core.lock().await?;
    let named = core.store.resolve(reference).is_some();
    let in_store = |digest: &Digest| core.content.size(digest).is_some();
    let ask = match named || reference.digest().is_some_and(in_store) {
        true => Ask::Digest,
        false => Ask::Document,
    };
    let (session, resolved) = core
        .registry
        .resolve(reference, credentials, ask, in_store)
        .await
        .map_err(|source| ImageError::Resolve {
            reference: reference.to_string(),
            source,
        })?;
    let mut walk = Walk {
        core,
        session: &session,
        documents: vec![resolved.digest],
        size: 0,
    };
    let bytes = match resolved.bytes {
        Some(bytes) => walk.put(bytes).await?,
        None => walk.known(&resolved.digest).await?,
    };
    let manifest = walk.choose(bytes, &resolved.media_type).await?;
    let config = walk.config(&manifest.config).await?;
    manifest::check_config(&config, manifest.layers.len())?;
    let layers = layers(&manifest, &config);
    let (documents, documents_size) = (walk.documents, walk.size);

    let origin = Some(Arc::clone(&session));
    layer::bring(core, &layers, &origin, core.unpack_on_pull)
        .await
        .map_err(ImageError::Shared)?;
    let record = Record {
        id: manifest.config.digest,
        documents,
        size: documents_size + layers.iter().map(|layer| layer.size).sum::<u64>(),
        layers,
        pinned: false,
        user: config.facts.user,
        stop_signal: config.facts.stop_signal,
    };
    let mut names = vec![reference.with_digest(resolved.digest)];
    names.extend(reference.tag().is_some().then(|| reference.clone()));
    record_image(core, record, names).await
}

/// Stores record and names, and describes the image.
pub(super) async fn record_image(
    core: &Arc<Core>,
    record: Record,
    names: Vec<Reference>,
) -> Result<Image, ImageError> {
    let core = Arc::clone(core);
    spawn_blocking(move || {
        core.store.add(&record, &names)?;
        Ok(describe(&record, &core.store.names()?))
    })
    .await?
}

/// The layers of manifest and config, matched.
pub(super) fn layers(manifest: &Manifest, config: &ImageConfig) -> Vec<Layer> {
    let pairs = manifest.layers.iter().zip(&config.diff_ids);
    pairs
        .map(|(layer, diff_id)| Layer {
            blob: layer.digest,
            size: layer.size,
            diff_id: *diff_id,
        })
        .collect()
}

/// The way from the first document to the config.
struct Walk<'a> {
    core: &'a Arc<Core>,
    session: &'a Arc<Session>,
    documents: Vec<Digest>,
    size: u64,
}

impl Walk<'_> {
    async fn put(&self, bytes: Vec<u8>) -> Result<Vec<u8>, ImageError> {
        let content = self.core.content.clone();
        spawn_blocking(move || content.put(&bytes).map(|_| bytes).map_err(ImageError::from)).await?
    }

    /// A document from the content store; from the registry when it turns out to be corrupt.
    async fn known(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        match self.stored(digest).await? {
            Some(bytes) => Ok(bytes),
            None => self.put(self.session.document(digest).await?).await,
        }
    }

    async fn stored(&self, digest: &Digest) -> Result<Option<Vec<u8>>, ImageError> {
        let (content, digest) = (self.core.content.clone(), *digest);
        Ok(spawn_blocking(move || content.read(&digest, MAX_DOCUMENT).ok()).await?)
    }

    /// Follows indexes to the manifest for this machine.
    async fn choose(
        &mut self,
        mut bytes: Vec<u8>,
        media_type: &str,
    ) -> Result<Manifest, ImageError> {
        let mut media_type = media_type.to_owned();
        let host = Platform::host();
        for _ in 0..=MAX_INDEXES {
            let entries = match manifest::parse(&bytes, &media_type)? {
                Document::Manifest(manifest) => {
                    self.size += bytes.len() as u64;
                    return Ok(manifest);
                }
                Document::Index(entries) => entries,
            };
            let index = Digest::of(&bytes);
            let Some(chosen) = manifest::choose(&entries, &host) else {
                let Platform {
                    os, architecture, ..
                } = host;
                return Err(ImageError::NoPlatform {
                    os,
                    architecture,
                    index,
                });
            };
            if self.documents.contains(&chosen.digest) {
                return Err(ImageError::Nested(index));
            }
            self.documents.push(chosen.digest);
            bytes = self.known(&chosen.digest).await?;
            media_type.clone_from(&chosen.media_type);
        }
        Err(ImageError::Nested(Digest::of(&bytes)))
    }

    async fn config(&mut self, config: &Descriptor) -> Result<ImageConfig, ImageError> {
        let bytes = match self.stored(&config.digest).await? {
            Some(bytes) => bytes,
            None => {
                self.put(self.session.small_blob(&config.digest).await?)
                    .await?
            }
        };
        self.size += bytes.len() as u64;
        Ok(manifest::parse_config(&bytes)?)
    }
}
