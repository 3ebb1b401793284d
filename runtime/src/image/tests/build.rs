//! Small images, made here.

use std::io::Write;

use serde_json::json;

use crate::content::Digest;
use crate::image::manifest::{OCI_INDEX, OCI_MANIFEST};

/// An image and its parts.
#[derive(Debug, Clone)]
pub(super) struct Built {
    pub(super) config: Vec<u8>,
    pub(super) layers: Vec<Vec<u8>>,
    pub(super) manifest: Vec<u8>,
}

impl Built {
    pub(super) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    pub(super) fn id(&self) -> String {
        Digest::of(&self.config).to_string()
    }

    pub(super) fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.layers.iter().chain([&self.config])
    }
}

/// A tar of files.
pub(super) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = ::tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn descriptor(media_type: &str, bytes: &[u8]) -> serde_json::Value {
    json!({"mediaType": media_type, "digest": Digest::of(bytes).to_string(), "size": bytes.len()})
}

/// An image of these uncompressed layers, gzipped.
pub(super) fn image(tars: &[Vec<u8>]) -> Built {
    let compressed = tars.iter().map(|tar| gzip(tar)).collect();
    image_of(tars, compressed)
}

/// An image of these uncompressed layers, in these blobs.
pub(super) fn image_of(tars: &[Vec<u8>], layers: Vec<Vec<u8>>) -> Built {
    let diff_ids: Vec<String> = tars.iter().map(|tar| Digest::of(tar).to_string()).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {
            "Entrypoint": ["/bin/app"], "Env": ["PATH=/bin"], "User": "1000:1000",
            "StopSignal": "SIGQUIT", "Labels": {"a": "b"}, "Volumes": {"/data": {}},
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = config.to_string().into_bytes();
    let layer = |bytes: &Vec<u8>| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", bytes);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    });
    let manifest = manifest.to_string().into_bytes();
    Built {
        config,
        layers,
        manifest,
    }
}

/// An index with this machine's image and one for another.
pub(super) fn index(built: &Built) -> Vec<u8> {
    let host = crate::image::manifest::Platform::host();
    let entry = |architecture: &str, digest: &str, size: usize| {
        json!({
            "mediaType": OCI_MANIFEST, "digest": digest, "size": size,
            "platform": {"os": "linux", "architecture": architecture},
        })
    };
    let zeros = format!("sha256:{}", "0".repeat(64));
    let digest = built.digest().to_string();
    let manifests = [
        json!({
            "mediaType": OCI_MANIFEST, "digest": zeros, "size": 5,
            "platform": {"os": "unknown", "architecture": "unknown"},
            "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        }),
        entry("sparc", &zeros, 5),
        entry(&host.architecture, &digest, built.manifest.len()),
    ];
    json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
        .to_string()
        .into_bytes()
}

/// Two layers: a base, and one that changes it.
pub(super) fn two_layers() -> Built {
    image(&[
        tar(&[("bin/app", b"one"), ("etc/old", b"old")]),
        tar(&[("etc/.wh.old", b""), ("etc/new", b"new")]),
    ])
}
