//! Acts on the runtime: one verb, one file. What to do is decided by [`super::actions`] and
//! [`super::stop_order`]; when, by the worker.

pub(super) mod clean;
pub(super) mod image;
pub(super) mod reset;
pub(super) mod resize;
pub(super) mod sandbox;
pub(super) mod start;
pub(super) mod stop;
pub(super) mod storage;
