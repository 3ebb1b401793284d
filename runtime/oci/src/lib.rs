//! The command line of an OCI runtime, around [`hanok_runtime::oci`]: for `hanok oci`, and for `hanok-oci`, a small static
//! program of its own.

#![forbid(unsafe_code)]

mod command;
pub mod complaint;

pub use command::{Options, run};
