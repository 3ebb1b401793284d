//! Mandatory access control: what the kernel's security modules are to enforce on a container.
//!
//! Here is decided which profile a container gets; the shim sets it, right before the container's program. What
//! was asked for and cannot be had is an error, never a container without it.

pub mod app_armor;
pub mod selinux;
