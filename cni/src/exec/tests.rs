//! Laws of executed plugins.
