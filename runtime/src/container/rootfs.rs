//! Images as containers need them: what they say, and a root filesystem made from one.

use async_trait::async_trait;
use hanok_shim::protocol::Rootfs;

use crate::spec::ImageFacts;

/// An image that a container is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RootfsImage {
    /// `repository@sha256:...`, or the image id when it was never pulled.
    pub reference: String,
    /// What the image says about its containers.
    pub facts: ImageFacts,
}

/// A failure, with its chain of causes in the text. Nobody tells cases apart.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RootfsError(pub String);

/// Root filesystems by the container's id.
#[async_trait]
pub trait RootfsSource: std::fmt::Debug + Send + Sync {
    /// What an image id names; none when the image is not here.
    async fn image(&self, id: &str) -> Result<Option<RootfsImage>, RootfsError>;
    /// Unpacks the image if nobody has yet, and makes a writable root filesystem on top of it. Mounts nothing.
    async fn prepare(&self, key: &str, image: &str) -> Result<Rootfs, RootfsError>;
    /// Removes a root filesystem. Absent is success.
    async fn remove(&self, key: &str) -> Result<(), RootfsError>;
    /// Every root filesystem there is.
    async fn keys(&self) -> Result<Vec<String>, RootfsError>;
}
