//! The shim's library: the protocol that the runtime speaks, and the system calls that both use.

pub mod protocol;
