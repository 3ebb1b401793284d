//! Images: [`ImageService`] and what it speaks of.

use std::fmt;
use std::path::Path;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Error, Result};

/// Credentials of a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User and password.
    Basic {
        /// User.
        username: String,
        /// Password.
        password: String,
    },
    /// An OAuth2 identity (refresh) token.
    IdentityToken(String),
    /// A bearer token to be sent as it is.
    RegistryToken(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// Config digest, `sha256:...`.
    pub id: String,
    /// References with a tag, normalised: `docker.io/library/busybox:1.37`.
    pub repo_tags: Vec<String>,
    /// References with a digest: `docker.io/library/busybox@sha256:...`.
    pub repo_digests: Vec<String>,
    /// Size of the compressed layers, config and manifest, bytes.
    pub size: u64,
    /// The image's USER, as it is written.
    pub user: String,
    /// The image's STOPSIGNAL, as it is written; empty for none.
    pub stop_signal: String,
    /// Not to be collected.
    pub pinned: bool,
}

/// Images.
#[async_trait]
pub trait ImageService: Send + Sync + 'static {
    /// Fetches an image and returns it. Twenty callers that ask at once share one fetch.
    /// `credentials` are tried in turn, then none. Cancelled by dropping every caller's future.
    async fn pull_image(&self, reference: &str, credentials: &[Credentials]) -> Result<Image>;
    /// The image that a reference, an id or a digested reference names; none when it is not here.
    async fn image_status(&self, reference: &str) -> Result<Option<Image>>;
    /// Every image.
    async fn list_images(&self) -> Result<Vec<Image>>;
    /// Removes a reference, and the image with its layers when it was the last one. Absent is success.
    async fn remove_image(&self, reference: &str) -> Result<()>;
    /// Unpacks what of an image (by id) is not unpacked yet, which may take long, so that a container is made from it at
    /// once. Cancelled by dropping every caller's future.
    async fn unpack_image(&self, id: &str) -> Result<()> {
        let _ = id;
        Ok(())
    }
    /// Mounts the files of an image (by id), read-only, on a directory of the node, which is made. A directory that has
    /// one keeps it. The image's layers stay until [`ImageService::unmount_images`].
    async fn mount_image(&self, id: &str, target: &Path) -> Result<()> {
        Err(Error::Internal(format!(
            "cannot mount image {id} on {}: not supported",
            target.display()
        )))
    }
    /// Unmounts the images that are mounted on directories below this one. None is success.
    async fn unmount_images(&self, dir: &Path) -> Result<()> {
        let _ = dir;
        Ok(())
    }
}
