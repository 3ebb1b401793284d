//! An OCI image layout on disk: `oci-layout`, `index.json` and `blobs/sha256/*`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Recipe;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A layout with one image.
#[derive(Debug, Clone)]
pub struct Layout {
    dir: PathBuf,
}

/// A blob as manifests name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// `sha256:...`.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

impl Layout {
    /// Opens the layout in `dir`, after writing it when it is not there. The rename is the commit.
    ///
    /// # Errors
    /// When a part of the image cannot be read or the layout not be written.
    pub fn open_or_write(dir: &Path, recipe: &Recipe) -> Result<Self> {
        if !dir.join("index.json").exists() {
            let unfinished = dir.with_extension("unfinished");
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)?;
            }
            write(&unfinished, recipe)?;
            fs::rename(&unfinished, dir).with_context(|| dir.display().to_string())?;
        }
        Ok(Self {
            dir: dir.to_path_buf(),
        })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The image's manifest: its descriptor and its bytes.
    ///
    /// # Errors
    /// When the layout is broken.
    pub fn manifest(&self) -> Result<(Descriptor, Vec<u8>)> {
        let index: Value = serde_json::from_slice(&fs::read(self.dir.join("index.json"))?)?;
        let descriptor = Descriptor::parse(&index["manifests"][0])?;
        let bytes = fs::read(self.blob_path(&descriptor.digest)?)?;
        Ok((descriptor, bytes))
    }

    /// The blobs that the manifest names: configuration and layers.
    ///
    /// # Errors
    /// When the layout is broken.
    pub fn blobs(&self) -> Result<Vec<Descriptor>> {
        let manifest: Value = serde_json::from_slice(&self.manifest()?.1)?;
        let layers = manifest["layers"]
            .as_array()
            .context("a manifest without layers")?;
        std::iter::once(&manifest["config"])
            .chain(layers)
            .map(Descriptor::parse)
            .collect()
    }

    /// The file of a blob.
    ///
    /// # Errors
    /// When the digest is not one.
    pub fn blob_path(&self, digest: &str) -> Result<PathBuf> {
        match digest.strip_prefix("sha256:") {
            Some(hex) if hex.len() == 64 => Ok(self.dir.join("blobs/sha256").join(hex)),
            _ => bail!("{digest:?} is not a digest"),
        }
    }
}

impl Descriptor {
    fn parse(value: &Value) -> Result<Self> {
        let text = |key: &str| {
            value[key]
                .as_str()
                .map(str::to_owned)
                .context(key.to_owned())
        };
        Ok(Self {
            media_type: text("mediaType")?,
            digest: text("digest")?,
            size: value["size"].as_u64().context("size")?,
        })
    }

    fn json(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.size })
    }
}

fn write(dir: &Path, recipe: &Recipe) -> Result<()> {
    fs::create_dir_all(dir.join("blobs/sha256"))?;
    let mut layers = Vec::new();
    let mut diff_ids = Vec::new();
    for rootfs in &recipe.layers {
        let layer = rootfs.layer()?;
        layers.push(write_blob(dir, LAYER, &layer.blob)?.json());
        diff_ids.push(layer.diff_id);
    }
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": recipe.config,
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = write_blob(dir, CONFIG, config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.json(),
        "layers": layers,
    });
    let mut manifest = write_blob(dir, MANIFEST, manifest.to_string().as_bytes())?.json();
    let reference = format!(
        "{}:{}",
        recipe.name,
        recipe.tags.first().map_or("latest", String::as_str)
    );
    // Who imports the layout, instead of pulling the image, knows it by this name.
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": reference,
        "io.containerd.image.name": format!("hanok.local/{reference}"),
    });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    fs::write(dir.join("index.json"), index.to_string())?;
    Ok(())
}

fn write_blob(dir: &Path, media_type: &str, bytes: &[u8]) -> Result<Descriptor> {
    let hex = hex(&Sha256::digest(bytes));
    fs::write(dir.join("blobs/sha256").join(&hex), bytes)?;
    Ok(Descriptor {
        media_type: media_type.to_owned(),
        digest: format!("sha256:{hex}"),
        size: bytes.len() as u64,
    })
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
