//! Images for the lab's registry: made here as OCI layouts, byte for byte the same each time, then pushed.
//!
//! A layout is kept in `target/images` under a name that holds the digest of what went into it, so that a second
//! lab makes none.

mod catalog;
mod layout;
mod push;
mod rootfs;
mod shared_object;
mod suite;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

pub use catalog::Recipe;
pub use layout::Layout;
pub use push::Registry;
pub use rootfs::Rootfs;
pub(crate) use suite::REPOSITORY as SUITE_REPOSITORY;

use crate::paths;
use crate::process::wait_for;

/// Makes the images of these names, or every image when there are none, and returns their layouts. What goes into
/// an image need be there only when that image is made.
///
/// # Errors
/// When something that goes into an image is missing, or a name is unknown.
pub fn build(only: &[String]) -> Result<Vec<(Recipe, Layout)>> {
    let names: Vec<&str> = match only {
        [] => catalog::NAMES.to_vec(),
        only => only.iter().map(String::as_str).collect(),
    };
    names.into_iter().map(build_one).collect()
}

fn build_one(name: &str) -> Result<(Recipe, Layout)> {
    let recipe = catalog::recipe(name).with_context(|| format!("image {name}"))?;
    let dir = format!("{}-{}", name.replace('/', "-"), recipe.key()?);
    let layout = Layout::open_or_write(&directory().join(dir), &recipe)
        .with_context(|| format!("image {name}"))?;
    Ok((recipe, layout))
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
    let images = build(&[])?;
    let registry = Registry::new(address);
    wait_for("the registry", Duration::from_secs(20), || registry.ping())?;
    images
        .iter()
        .try_for_each(|(recipe, layout)| recipe.push(layout, address))
}

/// Makes those of the references (registry/name:tag) that are images of Kubernetes' test suite which we can make,
/// and pushes each to its registry under its own tag.
///
/// # Errors
/// When an image cannot be made or pushed.
pub fn publish_suite(address: &str, references: &str) -> Result<()> {
    for (name, tag) in suite::wanted(address, references) {
        let (_, layout) = build_one(name)?;
        Registry::new(address).push(&layout, name, tag)?;
    }
    Ok(())
}
