//! The subcommands of `hanok`, one file each.

pub mod agent;
pub mod complaint;
pub mod image;
pub mod oci;
pub mod ps;
pub mod run;
mod table;
