//! Acts on the runtime: one verb, one file. What to do is decided by [`super::actions`] and
//! [`super::stop_order`]; when, by the worker.

pub(super) mod clean;
pub(super) mod image;
pub(super) mod reset;
pub(super) mod resize;
pub(super) mod sandbox;
pub(super) mod start;
pub(super) mod stop;

use std::error::Error;
use std::fmt::Write;

/// An error with everything that caused it.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
