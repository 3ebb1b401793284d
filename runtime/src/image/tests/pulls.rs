//! Pulling: what comes in, what is refused, what is fetched how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::Response;

use super::build::{Built, image, image_of, index, tar, two_layers};
use super::registry_stub::{Registry, cut, endless, full, ranged, status};
use super::*;
use crate::image::manifest::OCI_INDEX;

/// What is wrong with a blob when it comes.
type Spoil = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

async fn pull_error(images: &Images, name: &str) -> String {
    images.pull_image(name, &[]).await.unwrap_err().to_string()
}

/// The threads of work that was given up clean up a moment later.
async fn until_clean(dir: &tempfile::TempDir) {
    let places = ["content/ingest", "snapshots/overlay/ingest"];
    let left = || {
        places
            .iter()
            .map(|place| files_in(dir.path().join(place)))
            .sum::<usize>()
    };
    for _ in 0..500 {
        if left() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} unfinished pieces left", left());
}

async fn one(built: &Built) -> (Registry, String) {
    let registry = Registry::start().await;
    registry.push("app", "1", built);
    let name = registry.name("app:1");
    (registry, name)
}

#[tokio::test]
async fn root_a_pulled_image_is_unpacked_and_found_by_every_name() {
    let built = two_layers();
    let registry = Registry::start().await;
    let index = index(&built);
    registry.push("app", "by-hand", &built);
    registry.push_manifest("app", "1", OCI_INDEX, &index);
    let (dir, images) = store();
    let name = registry.name("app:1");
    let pulled = images.pull_image(&name, &[]).await.unwrap();
    assert_eq!(pulled.id, built.id());
    assert_eq!(pulled.repo_tags, std::slice::from_ref(&name));
    let digested = registry.name(&format!("app@{}", Digest::of(&index)));
    assert_eq!(pulled.repo_digests, std::slice::from_ref(&digested));
    assert_eq!(
        (pulled.user.as_str(), pulled.stop_signal.as_str()),
        ("1000:1000", "SIGQUIT")
    );
    for text in [&name, &digested, &built.id(), &built.id()[7..].to_owned()] {
        assert_eq!(
            images.image_status(text).await.unwrap().as_ref(),
            Some(&pulled),
            "{text}"
        );
    }
    assert_eq!(
        images.list_images().await.unwrap(),
        std::slice::from_ref(&pulled)
    );

    let requests = registry.seen().len();
    let lower = lower(&images.prepare_rootfs("c1", &pulled.id).await.unwrap());
    assert_eq!(
        registry.seen().len(),
        requests,
        "nothing is fetched for a container"
    );
    assert_eq!(std::fs::read(lower[1].join("bin/app")).unwrap(), b"one");
    assert_eq!(std::fs::read(lower[0].join("etc/new")).unwrap(), b"new");
    assert_eq!(files_in(dir.path().join("content/ingest")), 0);
    assert_eq!(files_in(dir.path().join("snapshots/overlay/ingest")), 0);
}

#[tokio::test]
async fn root_twenty_who_ask_at_once_cost_one_fetch_of_each_blob() {
    let (registry, name) = one(&two_layers()).await;
    let (_dir, images) = store();
    let pulls = (0..20).map(|_| images.pull_image(&name, &[]));
    for pulled in futures::future::join_all(pulls).await {
        pulled.unwrap();
    }
    assert_eq!(registry.count("/blobs/"), 3);
    assert_eq!(registry.count("/manifests/"), 1);
    let requests = registry.seen().len();
    images.pull_image(&name, &[]).await.unwrap();
    let later = &registry.seen()[requests..];
    assert!(later.len() == 1 && later[0].method == "HEAD", "{later:?}");
}

#[tokio::test]
async fn root_images_that_share_a_layer_fetch_it_once() {
    let base = tar(&[("base", b"base")]);
    let first = image(&[base.clone(), tar(&[("a", b"a")])]);
    let second = image(&[base, tar(&[("b", b"b")])]);
    let registry = Registry::start().await;
    registry.push("a", "1", &first);
    registry.push("b", "1", &second);
    let (_dir, images) = store();
    let (a, b) = (registry.name("a:1"), registry.name("b:1"));
    let (a, b) = tokio::join!(images.pull_image(&a, &[]), images.pull_image(&b, &[]));
    a.unwrap();
    b.unwrap();
    let base = Digest::of(&first.layers[0]).to_string();
    assert_eq!(registry.count(&base), 1);
}

#[tokio::test]
async fn what_is_not_there_is_named_in_the_error() {
    let registry = Registry::start().await;
    let (_dir, images) = store();
    let name = registry.name("nope:1");
    let error = pull_error(&images, &name).await;
    assert_eq!(
        error,
        format!(
            "failed to pull and unpack image \"{name}\": failed to resolve image: {name}: not found"
        )
    );
    let gone = "127.0.0.1:1/app:1";
    let error = pull_error(&images, gone).await;
    assert!(
        error.contains("failed to do request: GET \"http://127.0.0.1:1/v2/app/manifests/1\""),
        "{error}"
    );
    let error = images.pull_image("UPPER", &[]).await.unwrap_err();
    assert!(matches!(error, api::Error::InvalidReference { .. }));
}

#[tokio::test]
async fn root_a_blob_that_breaks_off_is_continued_where_it_stopped() {
    let noise: Vec<u8> = (0..200_000_u32)
        .flat_map(|n| Digest::of(&n.to_le_bytes()).hex().into_bytes())
        .take(400_000)
        .collect();
    let built = image(&[tar(&[("noise", &noise)])]);
    let (registry, name) = one(&built).await;
    let (blob, turns) = (built.layers[0].clone(), AtomicUsize::new(0));
    registry.hook(move |seen| {
        let is_layer = seen.path.ends_with(&Digest::of(&blob).to_string());
        (is_layer && turns.fetch_add(1, Ordering::SeqCst) == 0)
            .then(|| cut(&blob[..100_000], blob.len()))
    });
    let (_dir, images) = store();
    images.pull_image(&name, &[]).await.unwrap();
    let layer = Digest::of(&built.layers[0]).to_string();
    let ranges: Vec<_> = registry
        .seen()
        .into_iter()
        .filter(|seen| seen.path.contains(&layer))
        .map(|seen| seen.range)
        .collect();
    assert_eq!(ranges.len(), 2);
    assert!(
        ranges[1]
            .as_ref()
            .is_some_and(|range| range.starts_with("bytes=") && range != "bytes=0-"),
        "{ranges:?}"
    );
}

#[tokio::test]
async fn bad_bytes_are_refused_and_leave_nothing() {
    let built = two_layers();
    let layer = built.layers[1].clone();
    let other = image_of(
        &[tar(&[("x", b"x")]), tar(&[("y", b"y")])],
        built.layers.clone(),
    );
    let faults: Vec<(&str, Built, Spoil)> = vec![
        (
            "does not match its digest",
            built.clone(),
            Box::new(|blob| {
                let mut blob = blob.to_vec();
                blob[20] ^= 1;
                blob
            }),
        ),
        (
            "its descriptor says",
            built.clone(),
            Box::new(|blob| [blob, b"more"].concat()),
        ),
        ("the image config says", other, Box::new(<[u8]>::to_vec)),
    ];
    for (expected, built, spoil) in faults {
        let (registry, name) = one(&built).await;
        let layer = layer.clone();
        registry.hook(move |seen| {
            let hit = seen.path.ends_with(&Digest::of(&layer).to_string());
            hit.then(|| ranged(&spoil(&layer), None))
        });
        let (dir, images) = store();
        let error = pull_error(&images, &name).await;
        assert!(error.contains(expected), "{error}");
        assert!(images.list_images().await.unwrap().is_empty());
        until_clean(&dir).await;
    }
}

#[tokio::test]
async fn an_endless_document_is_cut_off() {
    let (registry, name) = one(&two_layers()).await;
    registry.hook(|seen| seen.path.contains("/manifests/").then(endless));
    let (_dir, images) = store();
    let error = pull_error(&images, &name).await;
    assert!(error.contains("larger than 4194304 bytes"), "{error}");
}

#[tokio::test]
async fn an_index_in_a_circle_ends_after_a_few_requests() {
    let registry = Registry::start().await;
    // A true circle would need a hash collision; a chain of indexes is the nearest.
    let mut bytes = two_layers().manifest;
    let host = manifest::Platform::host();
    for _ in 0..10 {
        let mut entry = super::build::descriptor(OCI_INDEX, &bytes);
        entry["platform"] = serde_json::json!({"os": "linux", "architecture": host.architecture});
        let json =
            serde_json::json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]});
        bytes = json.to_string().into_bytes();
        registry.push_manifest("app", "1", OCI_INDEX, &bytes);
    }
    let (_dir, images) = store();
    let error = pull_error(&images, &registry.name("app:1")).await;
    assert!(error.contains("nests too deep"), "{error}");
    assert!(registry.seen().len() <= 4);
}

#[tokio::test]
async fn no_secret_follows_a_redirect_to_another_host() {
    let (registry, name) = one(&two_layers()).await;
    let elsewhere = Registry::start().await;
    for blob in two_layers().blobs() {
        elsewhere.push_blob(blob);
    }
    let to = elsewhere.address;
    registry.hook(move |seen| {
        if seen.authorization.is_none() {
            return Some(
                Response::builder()
                    .status(401)
                    .header("www-authenticate", "Basic realm=x")
                    .body(full(b""))
                    .unwrap(),
            );
        }
        let location = format!("http://{to}{}", seen.path);
        seen.path.contains("/blobs/").then(|| {
            Response::builder()
                .status(307)
                .header("location", location)
                .body(full(b""))
                .unwrap()
        })
    });
    let (_dir, images) = store();
    let secret = Credentials::Basic {
        username: "u".to_owned(),
        password: "p".to_owned(),
    };
    images.pull_image(&name, &[secret]).await.unwrap();
    assert_eq!(elsewhere.count("/blobs/"), 3);
    assert!(
        elsewhere
            .seen()
            .iter()
            .all(|seen| seen.authorization.is_none())
    );
    assert!(
        registry
            .seen()
            .iter()
            .any(|seen| seen.authorization.as_deref() == Some("Basic dTpw"))
    );
}

#[tokio::test]
async fn a_token_is_fetched_once_and_the_right_credentials_are_found() {
    let (registry, name) = one(&two_layers()).await;
    let address = registry.address;
    registry.hook(move |seen| {
        if seen.path.starts_with("/token") {
            let good = seen.authorization.as_deref() == Some("Basic dTpw");
            return Some(if good {
                Response::new(full(br#"{"token":"T"}"#))
            } else {
                status(401)
            });
        }
        let challenge = format!("Bearer realm=\"http://{address}/token\",service=\"s\"");
        (seen.authorization.as_deref() != Some("Bearer T")).then(|| {
            Response::builder()
                .status(401)
                .header("www-authenticate", challenge)
                .body(full(b""))
                .unwrap()
        })
    });
    let (_dir, images) = store();
    let basic = |password: &str| Credentials::Basic {
        username: "u".to_owned(),
        password: password.to_owned(),
    };
    let error = images
        .pull_image(&name, &[basic("bad")])
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("status 401"), "{error}");
    let before = registry.count("/token");
    images
        .pull_image(&name, &[basic("bad"), basic("p")])
        .await
        .unwrap();
    assert_eq!(registry.count("/token") - before, 2);
    let scope = "scope=repository%3Aapp%3Apull&service=s";
    assert!(registry.seen().iter().any(|seen| seen.path.contains(scope)));
}

#[tokio::test]
async fn root_a_passing_failure_is_tried_again_and_a_lasting_one_reported() {
    let (registry, name) = one(&two_layers()).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    registry.hook(move |_| {
        (counted.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)).then(|| status(503))
    });
    let (_dir, images) = store();
    images.pull_image(&name, &[]).await.unwrap();
    registry.hook(|_| Some(status(500)));
    let error = pull_error(&images, &registry.name("app:2")).await;
    assert!(
        error.contains("unexpected status from GET request") && error.contains("500"),
        "{error}"
    );
}

#[tokio::test]
async fn root_a_corrupt_blob_is_replaced_by_the_next_pull() {
    let built = two_layers();
    let (_registry, name) = one(&built).await;
    let (dir, images) = store();
    images.pull_image(&name, &[]).await.unwrap();
    std::fs::remove_dir_all(dir.path().join("snapshots")).unwrap();
    let images = open(&dir);
    let layer = Digest::of(&built.layers[0]).hex();
    let path = dir.path().join("content/blobs/sha256").join(layer);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[15] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let error = images.prepare_rootfs("c1", &built.id()).await.unwrap_err();
    let error = text_of(&error);
    assert!(error.contains("is corrupt in the content store"), "{error}");
    assert_eq!(
        images.image_status(&name).await.unwrap(),
        None,
        "so that it is pulled again"
    );
    images.pull_image(&name, &[]).await.unwrap();
    images.prepare_rootfs("c1", &built.id()).await.unwrap();
}

#[tokio::test]
async fn root_the_last_name_takes_image_blobs_and_layers_with_it() {
    let built = two_layers();
    let (registry, name) = one(&built).await;
    let (dir, images) = store();
    images.pull_image(&name, &[]).await.unwrap();
    registry.push("app", "2", &built);
    images
        .pull_image(&registry.name("app:2"), &[])
        .await
        .unwrap();
    let layers = || files_in(dir.path().join("snapshots/overlay/layers"));
    let blobs = || files_in(dir.path().join("content/blobs/sha256"));
    images.prepare_rootfs("c1", &built.id()).await.unwrap();

    images.remove_image(&name).await.unwrap();
    assert!(images.image_status(&built.id()).await.unwrap().is_some());
    images.remove_image(&registry.name("app:2")).await.unwrap();
    assert_eq!(images.list_images().await.unwrap(), []);
    assert_eq!((blobs(), layers()), (0, 2), "a container's layers stay");
    images.remove_rootfs("c1").await.unwrap();
    images.collect().await.unwrap();
    assert_eq!(layers(), 0);
    images.remove_image(&name).await.unwrap();
}

#[tokio::test]
async fn a_pull_that_nobody_waits_for_stops_and_leaves_nothing() {
    let built = two_layers();
    let (registry, name) = one(&built).await;
    let size = built.layers[0].len();
    let (stall, blob) = (
        Digest::of(&built.layers[0]).to_string(),
        built.layers[0].clone(),
    );
    registry.hook(move |seen| {
        // Announces all, sends half, and keeps the connection open.
        seen.path.ends_with(&stall).then(|| {
            let first = futures::stream::iter([Ok(hyper::body::Frame::data(
                bytes::Bytes::copy_from_slice(&blob[..size / 2]),
            ))]);
            let body = futures::StreamExt::chain(first, futures::stream::pending());
            let body = http_body_util::BodyExt::boxed(http_body_util::StreamBody::new(body));
            Response::builder()
                .header("content-length", size)
                .body(body)
                .unwrap()
        })
    });
    let (dir, images) = store();
    let wait = std::time::Duration::from_millis(500);
    assert!(
        tokio::time::timeout(wait, images.pull_image(&name, &[]))
            .await
            .is_err()
    );
    until_clean(&dir).await;
}
