//! The subcommands of `hanok`, one file each.

pub mod agent;
pub mod image;
pub mod ps;
pub mod run;
mod table;
