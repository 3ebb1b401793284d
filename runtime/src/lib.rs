//! The container runtime: images, content store, snapshots, sandboxes, containers.
//!
//! It knows Linux and OCI, and nothing of pods in the Kubernetes sense. The agent calls [`api`] in process.

pub mod api;
pub mod cgroup;
pub mod container;
pub mod inspect;
pub mod sandbox;
pub mod seccomp;
pub mod service;
pub mod shim_client;
pub mod spec;
