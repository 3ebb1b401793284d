//! The hanok node agent: what the kubelet does.
//!
//! ```text
//! API server / manifest file ─► pod::source ─► pod::workers ─► pod::worker (one task per pod UID)
//!     worker:  desired + observed + clock ─► pod::actions (pure) ─► pod::sync (acts on the runtime)
//!     worker:  observed ─► pod::status (pure) ─► sinks::StatusSink ─► API server, or the console
//! ```
//! The only crate that names Kubernetes types. Never forks, never blocks a tokio thread.

#![forbid(unsafe_code)]

pub mod alone;
pub mod assembly;
pub mod back_off;
mod bucket;
pub mod certificate;
pub mod client;
pub mod cmd;
pub mod config;
pub mod descriptors;
pub mod embedded;
pub mod env;
pub mod events;
pub mod flags;
pub mod lease;
mod local_grpc;
pub mod logging;
pub mod mirror;
pub mod node;
pub mod objects;
pub mod pod;
pub mod pod_resources;
pub mod pods_api;
pub mod quantity;
pub mod server;
pub mod sinks;
pub mod source;
pub mod stats;
pub mod status_writer;
pub mod timeline;
pub mod volume;
