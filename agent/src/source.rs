//! Where desired pods come from. Each source sends [`crate::sinks::PodUpdate`]s.
//!
//! ```text
//! api          the pods that the API server has bound to this node; mirror pods go to crate::mirror
//! file, url    manifests of static pods ─► static_pods: what has changed since the last look
//! ```

pub mod api;
pub mod file;
pub mod manifest;
pub mod static_pods;
pub mod url;
