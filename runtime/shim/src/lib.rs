//! The shim's library: the protocol that the runtime speaks, and the system calls that both use.
//!
//! [`protocol`] has the messages, [`frame`] puts them on a byte stream, [`client`] is the blocking caller
//! (tests and small tools; the runtime has its own asynchronous one). [`command_line`] is how a shim is found
//! without its files. [`launch`] and [`hook`] are for the OCI
//! command line, [`devices`] is a table. [`sys`] is the only place with `unsafe` code.

pub mod client;
pub mod command_line;
pub mod devices;
pub mod frame;
pub mod hook;
pub mod launch;
pub mod protocol;
pub mod sys;
