//! Images for the lab's registry: made here as OCI layouts, byte for byte the same each time, then pushed.
//!
//! A layout is kept in `target/images` under a name that holds the digest of what went into it, so that a second
//! lab makes none.

mod catalog;
mod layout;
mod push;
mod rootfs;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

pub use catalog::{Recipe, recipes};
pub use layout::Layout;
pub use push::Registry;
pub use rootfs::Rootfs;

use crate::paths;
use crate::process::wait_for;

/// Makes every image of the catalog that is not there yet and returns their layouts.
///
/// # Errors
/// When something that goes into an image is missing.
pub fn build_all() -> Result<Vec<(Recipe, Layout)>> {
    let build = |recipe: Recipe| {
        let layout = build(&recipe).with_context(|| format!("image {}", recipe.name))?;
        Ok((recipe, layout))
    };
    recipes()?.into_iter().map(build).collect()
}

/// Makes one image and returns its layout.
///
/// # Errors
/// When something that goes into it is missing.
pub fn build(recipe: &Recipe) -> Result<Layout> {
    let dir = directory().join(format!("{}-{}", recipe.name, recipe.key()?));
    Layout::open_or_write(&dir, recipe)
}

/// Where layouts are kept.
pub fn directory() -> PathBuf {
    paths::target().join("images")
}

/// Makes every image and pushes it to the registry at `address` (host:port), once that answers.
///
/// # Errors
/// When an image cannot be made or pushed.
pub fn publish(address: &str) -> Result<()> {
    let images = build_all()?;
    let registry = Registry::new(address);
    wait_for("the registry", Duration::from_secs(20), || registry.ping())?;
    for (recipe, layout) in images {
        for tag in &recipe.tags {
            registry.push(&layout, &recipe.name, tag)?;
        }
    }
    Ok(())
}
