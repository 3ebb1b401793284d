//! `hanok image`: the images on this machine, straight from the store on disk.
//!
//! The store is safe for several processes at once, so an agent may be at work meanwhile.

use std::path::{Path, PathBuf};

use anyhow::Context;
use hanok_runtime::api::{Image, ImageService};
use hanok_runtime::image::{Images, ImagesConfig};
use serde::Serialize;

use super::table::{self, Format};

/// Options of `hanok image`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
    /// Directory of images and their layers
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/var/lib/hanok"
    )]
    state_dir: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Import an OCI layout (directory or tar) or a `docker save` archive
    Import {
        /// The layout or archive
        path: PathBuf,
        /// Name for the image, in place of those in the archive
        #[arg(long, value_name = "REF")]
        name: Option<String>,
    },
    /// List images
    Ls {
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Remove images by name or id
    Rm {
        /// Names or ids
        #[arg(required = true, value_name = "REF")]
        references: Vec<String>,
    },
}

/// Runs the command.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let images = open(&options.state_dir).await?;
    match options.command {
        Command::Import { path, name } => import(&images, &path, name.as_deref()).await,
        Command::Ls { output } => list(&images, output).await,
        Command::Rm { references } => remove(&images, &references).await,
    }
}

async fn open(state_dir: &Path) -> anyhow::Result<Images> {
    let config = ImagesConfig::new(state_dir);
    let opened = tokio::task::spawn_blocking(move || Images::open(config)).await?;
    opened.with_context(|| format!("cannot open the image store in {}", state_dir.display()))
}

async fn import(images: &Images, path: &Path, name: Option<&str>) -> anyhow::Result<()> {
    let imported = images
        .import(path, name)
        .await
        .with_context(|| format!("cannot import {}", path.display()))?;
    for image in imported {
        let own = image.repo_tags.first().map_or("<none>", String::as_str);
        table::print(&format!("{} {}\n", name.unwrap_or(own), image.id))?;
    }
    Ok(())
}

async fn list(images: &Images, output: Format) -> anyhow::Result<()> {
    let mut list = images.list_images().await?;
    list.sort_by(|one, other| (&one.repo_tags, &one.id).cmp(&(&other.repo_tags, &other.id)));
    let text = match output {
        Format::Table => table::table(&["IMAGE", "TAG", "IMAGE ID", "SIZE"], &rows(&list)),
        Format::Json => serde_json::to_string_pretty(&document(&list))? + "\n",
    };
    table::print(&text)?;
    Ok(())
}

/// The JSON form, shaped as crictl's.
#[derive(Debug, Serialize)]
struct Document<'a> {
    images: Vec<ImageRow<'a>>,
}

/// An image in the JSON form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ImageRow<'a> {
    id: &'a str,
    repo_tags: &'a [String],
    repo_digests: &'a [String],
    size: u64,
    username: &'a str,
    pinned: bool,
}

fn document(images: &[Image]) -> Document<'_> {
    let images = images
        .iter()
        .map(|image| ImageRow {
            id: &image.id,
            repo_tags: &image.repo_tags,
            repo_digests: &image.repo_digests,
            size: image.size,
            username: &image.user,
            pinned: image.pinned,
        })
        .collect();
    Document { images }
}

/// One row for each tag; one for an image without any.
fn rows(images: &[Image]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for image in images {
        let row = |name: &str, tag: &str| {
            let (id, size) = (table::short(&image.id).to_owned(), table::size(image.size));
            vec![name.to_owned(), tag.to_owned(), id, size]
        };
        for reference in &image.repo_tags {
            let (name, tag) = reference.rsplit_once(':').unwrap_or((reference, "<none>"));
            rows.push(row(name, tag));
        }
        if image.repo_tags.is_empty() {
            let name = image
                .repo_digests
                .first()
                .and_then(|name| name.split_once('@'));
            rows.push(row(name.map_or("<none>", |(name, _)| name), "<none>"));
        }
    }
    rows
}

async fn remove(images: &Images, references: &[String]) -> anyhow::Result<()> {
    for reference in references {
        if images.image_status(reference).await?.is_none() {
            anyhow::bail!("image {reference:?} not found");
        }
        images
            .remove_image(reference)
            .await
            .with_context(|| format!("cannot remove {reference}"))?;
        table::print(&format!("removed {reference}\n"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_has_a_row() {
        let image = |tags: &[&str], digests: &[&str]| Image {
            id: format!("sha256:{}", "a".repeat(64)),
            repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            repo_digests: digests.iter().map(|digest| (*digest).to_owned()).collect(),
            size: 2_200_000,
            user: String::new(),
            stop_signal: String::new(),
            pinned: false,
        };
        let list = [
            image(&["localhost:5000/app:1", "docker.io/library/app:2"], &[]),
            image(&[], &["docker.io/library/old@sha256:bb"]),
            image(&[], &[]),
        ];
        let expected = [
            ["localhost:5000/app", "1"],
            ["docker.io/library/app", "2"],
            ["docker.io/library/old", "<none>"],
            ["<none>", "<none>"],
        ];
        for (row, expected) in rows(&list).iter().zip(expected) {
            assert_eq!(row[..2], expected);
            assert_eq!(row[2..], ["aaaaaaaaaaaaa", "2.2MB"]);
        }
    }
}
