//! The documents of an image: index, manifest, config. Untrusted bytes in, checked values out.
//!
//! Digests are parsed here once; sizes, numbers and depths have limits; a document that could be read as
//! two kinds is refused. Nothing here fetches or stores.

mod platform;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use platform::{Platform, choose};

use crate::content::{Digest, InvalidDigest};
use crate::json;
use crate::spec::ImageFacts;

/// Largest index, manifest or config, bytes (what registries accept, and containerd).
pub const MAX_DOCUMENT: u64 = 4 << 20;
/// Most layers: what overlayfs stacks.
pub const MAX_LAYERS: usize = 500;
/// Most descriptors in one index.
const MAX_DESCRIPTORS: usize = 1000;
/// Longest label, name and value together; longer ones are dropped, as containerd does.
const MAX_LABEL: usize = 4096;

/// OCI's index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// OCI's manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Docker's index.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Docker's manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// What is wrong with a document.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not the JSON it should be.
    #[error("malformed {what}{}", named(field))]
    Json {
        /// Which document.
        what: &'static str,
        /// Which field, with dots between the names; empty for the whole.
        field: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A bad digest inside.
    #[error("malformed descriptor")]
    Digest(#[from] InvalidDigest),
    /// A kind that is not supported; the oldest kind of manifest among them.
    #[error(
        "media type {0:?} is not supported; build the image again as {OCI_MANIFEST:?} or {DOCKER_MANIFEST:?}"
    )]
    MediaType(String),
    /// The document says that it is something else than it was announced as.
    #[error("document says it is {inside:?} but came as {outside:?}")]
    Ambiguous {
        /// By its own word.
        inside: String,
        /// By descriptor or header.
        outside: String,
    },
    /// It has both "manifests" and "layers".
    #[error("document is an index and a manifest at once")]
    TwoKinds,
    /// Too much of something.
    #[error("image has more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The config does not fit the manifest.
    #[error("image config lists {diff_ids} layers and the manifest {layers}")]
    Layers {
        /// Diff ids in the config.
        diff_ids: usize,
        /// Layers in the manifest.
        layers: usize,
    },
}

/// Points at a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Media type as written.
    pub media_type: String,
    /// Digest.
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
    /// Platform, in an index.
    pub platform: Option<Platform>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A parsed document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// A choice of manifests.
    Index(Vec<Descriptor>),
    /// One image.
    Manifest(Manifest),
}

/// One image: its config and its layers, bottom first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The config.
    pub config: Descriptor,
    /// The layers, bottom first.
    pub layers: Vec<Descriptor>,
}

/// An image's config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// Command, environment, user and the like.
    pub facts: ImageFacts,
    /// LABEL. For people and tools; it must never steer the runtime.
    pub labels: BTreeMap<String, String>,
    /// EXPOSE.
    pub exposed_ports: Vec<String>,
    /// What it was built for.
    pub platform: Platform,
    /// Digests of the uncompressed layers, bottom first.
    pub diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: Option<u32>,
    media_type: Option<String>,
    manifests: Option<Vec<RawDescriptor>>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    config: Option<RawProcess>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawProcess {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    /// Docker takes null for no text.
    labels: Option<BTreeMap<String, Option<String>>>,
    stop_signal: Option<String>,
    volumes: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

impl TryFrom<RawDescriptor> for Descriptor {
    type Error = ManifestError;

    fn try_from(raw: RawDescriptor) -> Result<Self, ManifestError> {
        Ok(Self {
            digest: raw.digest.parse()?,
            media_type: raw.media_type,
            size: raw.size,
            platform: raw.platform,
            annotations: raw.annotations.unwrap_or_default(),
        })
    }
}

/// A document's bytes as what it is to be. The field that is not is looked for once there is one.
fn read<'a, T: Deserialize<'a>>(what: &'static str, bytes: &'a [u8]) -> Result<T, ManifestError> {
    serde_json::from_slice(bytes).map_err(|source| {
        let mut again = serde_json::Deserializer::from_slice(bytes);
        ManifestError::Json {
            what,
            field: json::wrong_field::<T, _>(&mut again).unwrap_or_default(),
            source,
        }
    })
}

fn named(field: &str) -> String {
    match field {
        "" => String::new(),
        field => format!(", field {field}"),
    }
}

fn descriptors(raw: Vec<RawDescriptor>) -> Result<Vec<Descriptor>, ManifestError> {
    raw.into_iter().map(Descriptor::try_from).collect()
}

/// Parses an index or a manifest that was announced as `media_type` (empty when nobody said).
pub fn parse(bytes: &[u8], media_type: &str) -> Result<Document, ManifestError> {
    let announced = media_type.split(';').next().unwrap_or_default().trim();
    if announced.contains("docker.distribution.manifest.v1") {
        return Err(ManifestError::MediaType(announced.to_owned()));
    }
    let raw: RawDocument = read("manifest", bytes)?;
    if raw.manifests.is_some() && (raw.layers.is_some() || raw.config.is_some()) {
        return Err(ManifestError::TwoKinds);
    }
    let inside = raw.media_type.unwrap_or_default();
    let known =
        |kind: &str| [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST].contains(&kind);
    if known(announced) && !inside.is_empty() && inside != announced {
        return Err(ManifestError::Ambiguous {
            inside,
            outside: announced.to_owned(),
        });
    }
    let kind = if known(announced) { announced } else { &inside };
    if raw.schema_version == Some(1) || (!kind.is_empty() && !known(kind)) {
        let named = if kind.is_empty() {
            "schemaVersion 1"
        } else {
            kind
        };
        return Err(ManifestError::MediaType(named.to_owned()));
    }
    let is_index = kind == OCI_INDEX || kind == DOCKER_LIST;
    let is_manifest = kind == OCI_MANIFEST || kind == DOCKER_MANIFEST;
    match (raw.manifests, raw.config, raw.layers) {
        (Some(list), _, _) if !is_manifest => {
            if list.len() > MAX_DESCRIPTORS {
                return Err(ManifestError::TooMany {
                    what: "manifests",
                    limit: MAX_DESCRIPTORS,
                });
            }
            Ok(Document::Index(descriptors(list)?))
        }
        (None, Some(config), layers) if !is_index => {
            let layers = layers.unwrap_or_default();
            if layers.len() > MAX_LAYERS {
                return Err(ManifestError::TooMany {
                    what: "layers",
                    limit: MAX_LAYERS,
                });
            }
            let (config, layers) = (config.try_into()?, descriptors(layers)?);
            check_layers(&layers)?;
            Ok(Document::Manifest(Manifest { config, layers }))
        }
        _ => Err(ManifestError::MediaType(kind.to_owned())),
    }
}

/// Refuses artifacts that are no filesystem. What a layer's compression is, its bytes tell.
fn check_layers(layers: &[Descriptor]) -> Result<(), ManifestError> {
    let is_tar = |kind: &str| {
        (kind.starts_with("application/vnd.oci.image.layer.") && kind.contains(".tar"))
            || kind.starts_with("application/vnd.docker.image.rootfs.")
    };
    match layers.iter().find(|layer| !is_tar(&layer.media_type)) {
        Some(layer) => Err(ManifestError::MediaType(layer.media_type.clone())),
        None => Ok(()),
    }
}

/// Parses a config.
pub fn parse_config(bytes: &[u8]) -> Result<ImageConfig, ManifestError> {
    let raw: RawConfig = read("image config", bytes)?;
    let process = raw.config.unwrap_or_default();
    let diff_ids = raw.rootfs.diff_ids.unwrap_or_default();
    if diff_ids.len() > MAX_LAYERS {
        return Err(ManifestError::TooMany {
            what: "layers",
            limit: MAX_LAYERS,
        });
    }
    let labels = process.labels.unwrap_or_default().into_iter();
    let labels = labels.map(|(name, value)| (name, value.unwrap_or_default()));
    let mut labels: BTreeMap<String, String> = labels.collect();
    labels.retain(|name, value| name.len() + value.len() <= MAX_LABEL);
    Ok(ImageConfig {
        facts: ImageFacts {
            entrypoint: process.entrypoint.unwrap_or_default(),
            cmd: process.cmd.unwrap_or_default(),
            env: process.env.unwrap_or_default(),
            working_dir: process.working_dir.unwrap_or_default(),
            user: process.user.unwrap_or_default(),
            volumes: process.volumes.unwrap_or_default().into_keys().collect(),
            stop_signal: process.stop_signal.unwrap_or_default(),
        },
        labels,
        exposed_ports: process
            .exposed_ports
            .unwrap_or_default()
            .into_keys()
            .collect(),
        platform: raw.platform,
        diff_ids,
    })
}

/// Checks that config and manifest speak of the same layers.
pub fn check_config(config: &ImageConfig, layers: usize) -> Result<(), ManifestError> {
    match config.diff_ids.len() == layers {
        true => Ok(()),
        false => Err(ManifestError::Layers {
            diff_ids: config.diff_ids.len(),
            layers,
        }),
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
