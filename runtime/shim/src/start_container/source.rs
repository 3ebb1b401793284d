//! What is mounted in a container, before it is in its place.

use std::os::fd::OwnedFd;

use hanok_shim::protocol::Mount;
use hanok_shim::sys::mount::ATTR_IDMAP;

use super::mounts::new_filesystem;
use crate::failure::Result;

/// What is mounted, detached.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) tree: OwnedFd,
    /// Whether it was made with all that the mount asks for.
    pub(super) is_complete: bool,
}

impl Source {
    /// The new filesystem of a mount.
    pub(super) fn new(
        mount: &Mount,
        (fstype, options): (&str, &[(String, String)]),
        label: Option<&str>,
    ) -> Result<Self> {
        // Ids are mapped by the node's root, and a label may be written to the filesystem's root.
        let is_complete =
            mount.propagation == 0 && mount.attr_set & ATTR_IDMAP == 0 && label.is_none();
        let attributes = if is_complete { mount.attr_set } else { 0 };
        Ok(Self {
            tree: new_filesystem(fstype, options, attributes, label)?,
            is_complete,
        })
    }
}

/// One that has no attributes yet.
impl From<OwnedFd> for Source {
    fn from(tree: OwnedFd) -> Self {
        Self {
            tree,
            is_complete: false,
        }
    }
}
