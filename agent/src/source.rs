//! Where desired pods come from. Each source sends [`crate::sinks::PodUpdate`]s.

pub mod api;
