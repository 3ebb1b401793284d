//! Pod networks for real: bridges, veth pairs, namespaces and nftables, inside a scratch namespace.

#![forbid(unsafe_code)]

#[path = "root/chain.rs"]
mod chain;
#[path = "root/lease.rs"]
mod lease;
#[path = "root/masquerade.rs"]
mod masquerade;
#[path = "root/netns.rs"]
mod netns;
#[path = "root/pods.rs"]
mod pods;
#[path = "root/portmap.rs"]
mod portmap;
#[path = "root/rig.rs"]
mod rig;
