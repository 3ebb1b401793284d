//! Imports images from files: an OCI layout (directory or tar) or a docker archive, compressed or not.
//!
//! Everything in them is untrusted. A directory's blobs are opened below it, never outside; a tar's entries
//! go straight into the content store's ingest directory under names of our own. Blobs only are stored; the
//! first container unpacks them.

mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::manifest::{self, DOCKER_MANIFEST, Document, MAX_DOCUMENT, Manifest, Platform};
use super::reference::Reference;
use super::store::Record;
use super::{Core, Images, gc, pull};
use crate::api::Image;
use crate::content::{self, Digest, Sealed};
use source::Source;

/// Deepest nesting of indexes: the layout's own, a multi-platform one, one more.
const MAX_INDEXES: usize = 3;
/// Most images in one archive.
const MAX_IMAGES: usize = 1000;

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file or directory cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no archive that we know.
    #[error("{} is neither an OCI layout nor a docker archive: {why}", path.display())]
    Unknown {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A part of it is missing.
    #[error("{} has no {name:?}", path.display())]
    Missing {
        /// Which archive.
        path: PathBuf,
        /// What is missing.
        name: String,
    },
    /// A part of it is malformed.
    #[error("malformed {name:?} in {}", path.display())]
    Json {
        /// Which archive.
        path: PathBuf,
        /// Which part.
        name: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Its tar is bad.
    #[error("failed to read the archive {}", path.display())]
    Tar {
        /// Which archive.
        path: PathBuf,
        /// Why.
        #[source]
        source: crate::unpack::tar::TarError,
    },
    /// A name given for it, or in it, is no reference.
    #[error("invalid image reference {0:?}")]
    Reference(String, #[source] super::reference::InvalidReference),
}

/// One image of the archive `docker save` writes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

impl Images {
    /// Imports the images at `path`. With a `name` the (one) image gets that name, else those that the
    /// archive has for it. Returns the images.
    pub async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
    ) -> Result<Vec<Image>, super::ImageError> {
        let span = tracing::info_span!("image.import", path = %path.display());
        let name = name
            .map(|name| {
                name.parse()
                    .map_err(|e| ImportError::Reference(name.to_owned(), e))
            })
            .transpose()?;
        let lock = self.core.lock().await?;
        let (core, path) = (Arc::clone(&self.core), path.to_owned());
        let images = tokio::task::spawn_blocking(move || {
            let _entered = span.entered();
            // After the lock, and also when nobody waits for this any more.
            let _collecting = gc::Later(Arc::clone(&core));
            let images = import(&core, &path, name.as_ref());
            drop(lock);
            images
        })
        .await?;
        if images.is_err() {
            gc::collect(&self.core).await?;
        }
        images
    }
}

fn import(
    core: &Core,
    path: &Path,
    name: Option<&Reference>,
) -> Result<Vec<Image>, super::ImageError> {
    let source = Source::open(path, &core.content)?;
    let mut job = Job {
        core,
        path,
        name,
        source,
        found: Vec::new(),
    };
    if job.source.has("index.json") {
        job.layout()?;
    } else if job.source.has("manifest.json") {
        job.docker()?;
    } else {
        let why = "it has no index.json and no manifest.json".to_owned();
        return Err(ImportError::Unknown {
            path: path.to_owned(),
            why,
        }
        .into());
    }
    let names = core.store.names()?;
    Ok(job
        .found
        .iter()
        .map(|record| super::describe(record, &names))
        .collect())
}

struct Job<'a> {
    core: &'a Core,
    path: &'a Path,
    name: Option<&'a Reference>,
    source: Source,
    found: Vec<Record>,
}

impl Job<'_> {
    fn json<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> Result<T, super::ImageError> {
        let bytes = self.source.take(name)?.read(MAX_DOCUMENT)?;
        let path = self.path.to_owned();
        Ok(
            serde_json::from_slice(&bytes).map_err(|source| ImportError::Json {
                path,
                name: name.to_owned(),
                source,
            })?,
        )
    }

    /// Makes sure that a blob of the layout is in the content store.
    fn blob(&mut self, digest: &Digest) -> Result<(), super::ImageError> {
        if self.core.content.size(digest).is_some() {
            return Ok(());
        }
        let sealed = self
            .source
            .take(&format!("blobs/sha256/{}", digest.hex()))?;
        if sealed.digest() != *digest {
            let actual = sealed.digest();
            return Err(content::ContentError::Mismatch {
                expected: *digest,
                actual,
            }
            .into());
        }
        Ok(sealed.commit()?)
    }

    fn document(&mut self, digest: &Digest) -> Result<Vec<u8>, super::ImageError> {
        self.blob(digest)?;
        Ok(self.core.content.read(digest, MAX_DOCUMENT)?)
    }

    /// An OCI layout: every image of its index that runs here.
    fn layout(&mut self) -> Result<(), super::ImageError> {
        let bytes = self.source.take("index.json")?.read(MAX_DOCUMENT)?;
        let Document::Index(entries) = manifest::parse(&bytes, "")? else {
            let why = "its index.json is no index".to_owned();
            return Err(ImportError::Unknown {
                path: self.path.to_owned(),
                why,
            }
            .into());
        };
        let host = Platform::host();
        let mut seen = Vec::new();
        for entry in entries.iter().take(MAX_IMAGES) {
            let here = std::slice::from_ref(entry);
            // One that names another platform is somebody else's; alone it is an error.
            if manifest::choose(here, &host).is_none() && entries.len() > 1 {
                continue;
            }
            if !seen.contains(&entry.digest) {
                seen.push(entry.digest);
                self.layout_image(entry, &host)?;
            }
            self.add_names(&entry.digest, entry)?;
        }
        Ok(())
    }

    fn layout_image(
        &mut self,
        entry: &manifest::Descriptor,
        host: &Platform,
    ) -> Result<(), super::ImageError> {
        let mut documents = vec![entry.digest];
        let mut bytes = self.document(&entry.digest)?;
        let mut media_type = entry.media_type.clone();
        for _ in 0..MAX_INDEXES {
            let entries = match manifest::parse(&bytes, &media_type)? {
                Document::Manifest(manifest) => {
                    return self.layout_manifest(&manifest, documents, bytes.len());
                }
                Document::Index(entries) => entries,
            };
            let index = Digest::of(&bytes);
            let chosen = manifest::choose(&entries, host).ok_or_else(|| {
                let Platform {
                    os, architecture, ..
                } = host.clone();
                super::ImageError::NoPlatform {
                    os,
                    architecture,
                    index,
                }
            })?;
            documents.push(chosen.digest);
            bytes = self.document(&chosen.digest)?;
            media_type.clone_from(&chosen.media_type);
        }
        Err(super::ImageError::Nested(entry.digest))
    }

    fn layout_manifest(
        &mut self,
        manifest: &Manifest,
        documents: Vec<Digest>,
        size: usize,
    ) -> Result<(), super::ImageError> {
        let config = self.document(&manifest.config.digest)?;
        for layer in &manifest.layers {
            self.blob(&layer.digest)?;
        }
        self.record(manifest, documents, &config, size)
    }

    fn record(
        &mut self,
        manifest: &Manifest,
        documents: Vec<Digest>,
        config: &[u8],
        size: usize,
    ) -> Result<(), super::ImageError> {
        let parsed = manifest::parse_config(config)?;
        manifest::check_config(&parsed, manifest.layers.len())?;
        let layers = pull::layers(manifest, &parsed);
        let record = Record {
            id: manifest.config.digest,
            documents,
            size: (size + config.len()) as u64 + layers.iter().map(|layer| layer.size).sum::<u64>(),
            layers,
            pinned: false,
            user: parsed.facts.user,
            stop_signal: parsed.facts.stop_signal,
        };
        self.core.store.add(&record, &[])?;
        self.found.push(record);
        Ok(())
    }

    /// Names the image that was found last as the layout's entry says.
    fn add_names(
        &mut self,
        digest: &Digest,
        entry: &manifest::Descriptor,
    ) -> Result<(), super::ImageError> {
        let found = self
            .found
            .iter()
            .find(|record| record.documents.first() == Some(digest));
        let Some(record) = found else {
            return Ok(());
        };
        let annotation = |key: &str| entry.annotations.get(key).map(String::as_str);
        let tag = annotation("org.opencontainers.image.ref.name");
        let full =
            annotation("io.containerd.image.name").or(tag.filter(|name| name.contains(['/', ':'])));
        let reference = match (self.name, full) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(full)) => Some(
                full.parse()
                    .map_err(|e| ImportError::Reference(full.to_owned(), e))?,
            ),
            (None, None) => None,
        };
        if let Some(reference) = reference {
            let by_digest = reference.with_digest(*digest);
            self.core.store.add(record, &[by_digest, reference])?;
        }
        Ok(())
    }

    /// What `docker save` wrote: layers and configs under names that mean nothing.
    fn docker(&mut self) -> Result<(), super::ImageError> {
        let saved: Vec<Saved> = self.json("manifest.json")?;
        for image in saved.into_iter().take(MAX_IMAGES) {
            let config = self.source.take(&image.config)?;
            let config_bytes = config.read(MAX_DOCUMENT)?;
            let config = self.keep(config)?;
            let mut layers = Vec::new();
            for name in &image.layers {
                layers.push(self.docker_layer(name)?);
            }
            let size = |digest: &Digest| self.core.content.size(digest).unwrap_or(0);
            let describe = |media_type: &str, digest: &Digest| {
                serde_json::json!({
                    "mediaType": media_type, "digest": digest.to_string(), "size": size(digest)
                })
            };
            let layer_type = "application/vnd.docker.image.rootfs.diff.tar";
            let layers: Vec<_> = layers
                .iter()
                .map(|layer| describe(layer_type, layer))
                .collect();
            let config_type = "application/vnd.docker.container.image.v1+json";
            let document = serde_json::json!({
                "schemaVersion": 2,
                "mediaType": DOCKER_MANIFEST,
                "config": describe(config_type, &config),
                "layers": layers,
            })
            .to_string();
            let Document::Manifest(manifest) = manifest::parse(document.as_bytes(), "")? else {
                continue;
            };
            let digest = self.core.content.put(document.as_bytes())?;
            self.record(&manifest, vec![digest], &config_bytes, document.len())?;
            self.docker_names(image.repo_tags.unwrap_or_default())?;
        }
        Ok(())
    }

    fn docker_names(&mut self, tags: Vec<String>) -> Result<(), super::ImageError> {
        let parse = |tag: String| tag.parse().map_err(|e| ImportError::Reference(tag, e));
        let names = match self.name {
            Some(name) => vec![name.clone()],
            None => tags.into_iter().map(parse).collect::<Result<_, _>>()?,
        };
        if let Some(record) = self.found.last() {
            self.core.store.add(record, &names)?;
        }
        Ok(())
    }

    /// A layer; several images of one archive may share it.
    fn docker_layer(&mut self, name: &str) -> Result<Digest, super::ImageError> {
        if let Some(digest) = self.source.taken(name) {
            return Ok(digest);
        }
        let sealed = self.source.take(name)?;
        self.keep(sealed)
    }

    fn keep(&self, sealed: Sealed) -> Result<Digest, super::ImageError> {
        let digest = sealed.digest();
        sealed.commit()?;
        Ok(digest)
    }
}
