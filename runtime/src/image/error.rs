//! What can go wrong with an image, and how it is told.

use std::sync::Arc;

use super::{import, manifest};
use crate::api;
use crate::content::{ContentError, Digest};
use crate::registry::RegistryError;
use crate::snapshot::SnapshotError;
use crate::unpack::pipe::PipeError;

/// What can go wrong with an image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// What a reference points to cannot be found out.
    #[error("failed to resolve image")]
    Resolve {
        /// The reference.
        reference: String,
        /// Why.
        #[source]
        source: RegistryError,
    },
    /// The registry, or the way to it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A document of the image.
    #[error(transparent)]
    Manifest(#[from] manifest::ManifestError),
    /// The content store.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// Getting a layer in.
    #[error(transparent)]
    Pipe(#[from] PipeError),
    /// Unpacking.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An archive or layout that cannot be imported.
    #[error(transparent)]
    Import(#[from] import::ImportError),
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
pub type SharedError = Arc<ImageError>;

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

impl From<ImageError> for api::Error {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NotFound(id) => api::Error::NotFound { kind: "image", id },
            other => api::Error::Internal(text_of(&other)),
        }
    }
}
