//! Pod networking: a runner of CNI plugins and the built-in plugins of a node.
//!
//! The runtime makes a network namespace ([`netns`]), asks the [`Runner`] to attach it, and later to
//! detach it. The runner walks the plugins of one network ([`Config`]) in order. `bridge`, `host-local`,
//! `loopback` and `portmap` are carried out in this process over netlink; every other plugin is executed
//! as the CNI specification 1.1.0 says ([`spec`]). Nothing here knows what a pod is.
//!
//! All work happens relative to the network namespace of the calling thread's runtime: threads that
//! this crate starts inherit it, so that a node inside a namespace of its own works unchanged.

#![forbid(unsafe_code)]

mod attachment;
mod cache;
mod config;
mod exec;
pub mod ipam;
pub mod masquerade;
mod netlink;
pub mod netns;
mod nft;
mod plugins;
mod runner;
pub mod spec;
mod task;

pub use attachment::{Attachment, InvalidAttachment, PortMapping};
pub use cache::CacheError;
pub use config::{BuiltIn, Config, ConfigError};
pub use exec::ExecError;
pub use netlink::NetlinkError;
pub use plugins::PluginError;
pub use plugins::bridge::remove_bridge;
pub use runner::{Collected, Options, Runner, RunnerError, Source};
pub use spec::AddResult;
