//! Snapshots: unpacked layers, and the writable directory of each container on top of them.
//!
//! A layer is known by its chain id, which stands for itself and everything below it. A snapshotter keeps
//! layers in a form of its own and says how a container's root filesystem is mounted; it mounts nothing.
//! Everything here blocks. [`overlay`] is the one for ordinary pods.

pub mod overlay;

use std::fmt::Debug;
use std::io::{self, BufRead};
use std::path::PathBuf;

use hanok_shim::protocol::Rootfs;

use crate::content::Digest;
pub use crate::unpack::{Settled, Unpacked, Usage};

/// Identifies a layer together with everything below it (OCI image specification, "Layer ChainID").
pub type ChainId = Digest;

/// The chain ids of an image's layers, bottom first, from their diff ids, bottom first.
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<ChainId> {
    let mut chain: Vec<ChainId> = Vec::with_capacity(diff_ids.len());
    for diff in diff_ids {
        chain.push(match chain.last() {
            Some(below) => Digest::of(format!("{below} {diff}").as_bytes()),
            None => *diff,
        });
    }
    chain
}

/// What can go wrong with a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The layer's content cannot be unpacked.
    #[error("failed to extract the layer")]
    Unpack(#[from] crate::unpack::UnpackError),
    /// A layer is not here (any more).
    #[error("layer {0} is not unpacked")]
    MissingLayer(ChainId),
    /// No such snapshot.
    #[error("snapshot {0:?} not found")]
    NotFound(String),
    /// An id that cannot be a directory's name.
    #[error("invalid snapshot id {0:?}: want 1 to 64 lower-case letters and digits")]
    InvalidId(String),
    /// The filesystem said no.
    #[error("failed to {verb} {}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key<'a> {
    /// An unpacked layer.
    Layer(&'a ChainId),
    /// A container's writable directory.
    Container(&'a str),
}

/// A layer unpacked and not yet committed. Dropping it discards it.
#[derive(Debug)]
pub struct Draft {
    pub(crate) temp: overlay::TempDir,
    pub(crate) unpacked: Unpacked,
}

impl Draft {
    /// What it takes on disk.
    pub fn usage(&self) -> Usage {
        self.unpacked.usage
    }
}

/// Everything a snapshotter holds.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Holdings {
    /// Unpacked layers.
    pub layers: Vec<ChainId>,
    /// Containers, each with its layers, topmost first.
    pub containers: Vec<(String, Vec<ChainId>)>,
}

/// Keeps layers and containers' writable directories. Lists of layers are topmost first.
pub trait Snapshotter: Debug + Send + Sync + 'static {
    /// Unpacks an uncompressed layer, on its own or, with `below`, onto committed layers.
    fn unpack(
        &self,
        tar: &mut dyn BufRead,
        below: Option<&[ChainId]>,
    ) -> Result<Draft, SnapshotError>;
    /// Makes a draft the layer `layer` on top of the committed layers `below`. On
    /// [`Settled::NeedsBelow`] nothing has happened: unpack again with `below`.
    fn commit(
        &self,
        draft: Draft,
        layer: &ChainId,
        below: &[ChainId],
    ) -> Result<Settled, SnapshotError>;
    /// Makes everything committed so far safe from a power cut. Layers that were not are unpacked anew
    /// after a reboot, so nothing waits for this.
    fn sync(&self) -> Result<(), SnapshotError>;
    /// Makes a container's writable directory on top of `layers`. Once more with the same id is success.
    fn prepare(&self, container: &str, layers: &[ChainId]) -> Result<(), SnapshotError>;
    /// How a prepared container's root filesystem is mounted.
    fn mounts(&self, container: &str) -> Result<Rootfs, SnapshotError>;
    /// Removes; absent is success. That a layer is in use is for the caller to know.
    fn remove(&self, key: Key<'_>) -> Result<(), SnapshotError>;
    /// What it takes on disk; [`SnapshotError::MissingLayer`] or [`SnapshotError::NotFound`] when it is not here.
    fn usage(&self, key: Key<'_>) -> Result<Usage, SnapshotError>;
    /// What there is.
    fn list(&self) -> Result<Holdings, SnapshotError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_id_covers_the_layer_and_all_below_it() {
        let diffs = [Digest::of(b"a"), Digest::of(b"b")];
        let chain = chain_ids(&diffs);
        assert_eq!(chain[0], diffs[0]);
        let text = format!("{} {}", diffs[0], diffs[1]);
        assert_eq!(chain[1], Digest::of(text.as_bytes()));
        assert!(chain_ids(&[]).is_empty());
    }
}
