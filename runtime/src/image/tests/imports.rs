//! Importing: layouts and archives, honest and not.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;

use super::build::{Built, descriptor, gzip, image, tar, two_layers};
use super::*;
use crate::image::manifest::OCI_MANIFEST;

pub(super) fn layout_files(built: &Built, name: &str) -> Vec<(String, Vec<u8>)> {
    let mut entry = descriptor(OCI_MANIFEST, &built.manifest);
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    let mut files = vec![
        (
            "oci-layout".to_owned(),
            br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
        ),
        ("index.json".to_owned(), index.to_string().into_bytes()),
    ];
    for blob in built.blobs().chain([&built.manifest]) {
        files.push((
            format!("blobs/sha256/{}", Digest::of(blob).hex()),
            blob.clone(),
        ));
    }
    files
}

pub(super) fn write_layout(dir: &Path, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn as_tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    tar(&files)
}

#[tokio::test]
async fn root_an_oci_layout_comes_in_as_directory_tar_and_tar_gz() {
    let built = two_layers();
    let files = layout_files(&built, "example.com/app:1");
    let scratch = tempfile::tempdir().unwrap();
    let [dir, plain, zipped] = ["dir", "a.tar", "a.tgz"].map(|name| scratch.path().join(name));
    write_layout(&dir, &files);
    fs::write(&plain, as_tar(&files)).unwrap();
    fs::write(&zipped, gzip(&as_tar(&files))).unwrap();
    for path in [dir, plain, zipped] {
        let (root, images) = store();
        let found = images.import(&path, None).await.unwrap();
        assert_eq!(found[0].id, built.id());
        assert_eq!(found[0].repo_tags, ["example.com/app:1"]);
        assert_eq!(
            found[0].repo_digests,
            [format!("example.com/app@{}", built.digest())]
        );
        let rootfs = images.prepare_rootfs("c1", &built.id()).await.unwrap();
        assert_eq!(fs::read(lower(&rootfs)[0].join("etc/new")).unwrap(), b"new");
        assert_eq!(files_in(root.path().join("content/ingest")), 0);
        let status = images.image_status("example.com/app:1").await.unwrap();
        assert_eq!(status.as_ref(), found.first());
    }
}

#[tokio::test]
async fn a_given_name_goes_before_the_layouts_own() {
    let scratch = tempfile::tempdir().unwrap();
    write_layout(scratch.path(), &layout_files(&two_layers(), "latest"));
    let (_dir, images) = store();
    let found = images.import(scratch.path(), None).await.unwrap();
    assert!(found[0].repo_tags.is_empty(), "a bare tag names nothing");
    let found = images
        .import(scratch.path(), Some("busybox:1"))
        .await
        .unwrap();
    assert_eq!(found[0].repo_tags, ["docker.io/library/busybox:1"]);
    let error = images
        .import(scratch.path(), Some("Bad"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("\"Bad\""), "{error}");
}

#[tokio::test]
async fn root_a_docker_archive_comes_in_with_links_between_its_layers() {
    let layer = tar(&[("bin/app", b"one")]);
    let built = super::build::image_of(
        &[layer.clone(), layer.clone()],
        vec![layer.clone(), layer.clone()],
    );
    let mut builder = ::tar::Builder::new(Vec::new());
    let mut add = |name: &str, data: &[u8]| {
        let mut header = ::tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, name, data).unwrap();
    };
    add("c.json", &built.config);
    add("1/layer.tar", &layer);
    let manifest = json!([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["1/layer.tar", "2/layer.tar"]}]);
    add("manifest.json", manifest.to_string().as_bytes());
    let mut header = ::tar::Header::new_ustar();
    header.set_entry_type(::tar::EntryType::Symlink);
    header.set_size(0);
    builder
        .append_link(&mut header, "2/layer.tar", "../1/layer.tar")
        .unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved.tar");
    fs::write(&path, builder.into_inner().unwrap()).unwrap();
    let (_dir, images) = store();
    let found = images.import(&path, None).await.unwrap();
    assert_eq!(found[0].repo_tags, ["docker.io/library/app:1"]);
    assert_eq!(found[0].id, built.id());
    assert_eq!(
        lower(&images.prepare_rootfs("c1", &built.id()).await.unwrap()).len(),
        2
    );
}

#[tokio::test]
async fn a_hostile_layout_reads_nothing_outside_and_leaves_nothing() {
    let built = two_layers();
    let files = layout_files(&built, "a:1");
    let secret = tempfile::tempdir().unwrap();
    fs::write(secret.path().join("secret"), &built.config).unwrap();
    let config = format!("blobs/sha256/{}", Digest::of(&built.config).hex());
    type Spoil = Box<dyn Fn(&Path)>;
    let (outside, blob) = (secret.path().join("secret"), config.clone());
    let faults: Vec<(&str, Spoil)> = vec![
        (
            "failed to read",
            Box::new(move |dir| {
                fs::remove_file(dir.join(&blob)).unwrap();
                symlink(&outside, dir.join(&blob)).unwrap();
            }),
        ),
        (
            "has no",
            Box::new(move |dir| fs::remove_file(dir.join(&config)).unwrap()),
        ),
        (
            "malformed",
            Box::new(|dir| fs::write(dir.join("index.json"), b"{").unwrap()),
        ),
        (
            "neither an OCI layout nor",
            Box::new(|dir| fs::remove_file(dir.join("index.json")).unwrap()),
        ),
    ];
    for (expected, spoil) in faults {
        let layout = tempfile::tempdir().unwrap();
        write_layout(layout.path(), &files);
        spoil(layout.path());
        let (dir, images) = store();
        let error = text_of(&images.import(layout.path(), None).await.unwrap_err());
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(images.list_images().await.unwrap().is_empty());
        assert_eq!(files_in(dir.path().join("content/ingest")), 0);
        assert_eq!(files_in(dir.path().join("content/blobs/sha256")), 0);
    }
}

#[tokio::test]
async fn what_is_broken_in_the_store_is_set_aside_at_open() {
    let scratch = tempfile::tempdir().unwrap();
    write_layout(scratch.path(), &layout_files(&two_layers(), "app.io/a:1"));
    let (dir, images) = store();
    images.import(scratch.path(), None).await.unwrap();
    drop(images);
    for kind in ["by-id", "refs"] {
        fs::write(dir.path().join("images").join(kind).join("x.json"), b"{").unwrap();
    }
    let images = open(&dir);
    assert_eq!(files_in(dir.path().join("images/broken")), 2);
    assert_eq!(images.list_images().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn root_an_image_of_many_layers_needs_no_deep_stack() {
    let layer = |number: usize| tar(&[(format!("f{number}").as_str(), b"x".as_slice())]);
    let built = image(&(0..400).map(layer).collect::<Vec<_>>());
    let scratch = tempfile::tempdir().unwrap();
    write_layout(scratch.path(), &layout_files(&built, "example.com/high:1"));
    let (_root, images) = store();
    let found = images.import(scratch.path(), None).await.unwrap();
    assert_eq!(images.ensure(&found[0].id).await.unwrap().len(), 400);
}

#[test]
fn root_what_is_strange_in_the_store_is_no_reason_not_to_open_it() {
    let root = tempfile::tempdir().unwrap();
    let open = || Images::open(ImagesConfig::new(root.path()));
    drop(open().unwrap());
    for place in [
        "content/ingest",
        "content/blobs/sha256",
        "images/by-id",
        "images/refs",
        "snapshots/overlay/layers",
        "snapshots/overlay/active",
        "snapshots/overlay/ingest",
        "snapshots/overlay/trash",
    ] {
        let place = root.path().join(place);
        fs::create_dir_all(place.join("dir/deep")).unwrap();
        fs::write(place.join("file"), "x").unwrap();
        fs::create_dir(place.join(".tmp-dir")).unwrap();
    }
    drop(open().unwrap());
    for swept in [
        "content/ingest",
        "snapshots/overlay/ingest",
        "snapshots/overlay/trash",
    ] {
        let left = fs::read_dir(root.path().join(swept)).unwrap().count();
        assert_eq!(left, 0, "{swept}");
    }
}
