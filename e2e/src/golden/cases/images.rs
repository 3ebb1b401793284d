//! Images that are not there.

use serde_json::json;

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::{Pod, pod, shell};

const BACK_OFF: &[&str] = &[
    "container c waiting ImagePullBackOff",
    "event Normal BackOff",
];

fn with(name: &str, image: &str) -> Pod {
    pod(name).with(shell("c", "sleep 600").set("image", image))
}

pub(super) fn cases() -> Vec<Case> {
    let digest = format!("REGISTRY/busybox@sha256:{}", "0".repeat(64));
    let none = json!([{"name": "nowhere"}]);
    let volume = json!({"image": {"reference": "REGISTRY/nowhere:3"}});
    vec![
        case(&with("no-image", "REGISTRY/nowhere:1"), BACK_OFF),
        case(&with("no-tag", "REGISTRY/busybox:nothing"), BACK_OFF),
        case(&with("no-digest", &digest), BACK_OFF),
        case(&with("no-registry", "127.0.0.1:1/nowhere:1"), BACK_OFF),
        case(
            &with("no-image-name", "No:Name:1"),
            &["container c waiting InvalidImageName"],
        ),
        case(
            &pod("image-never-pulled").with(
                sleeper("c")
                    .image("nowhere:2")
                    .set("imagePullPolicy", "Never"),
            ),
            &["container c waiting ErrImageNeverPull"],
        ),
        case(
            &pod("image-always-pulled").with(sleeper("c").set("imagePullPolicy", "Always")),
            &["container c running"],
        ),
        case(
            &pod("no-pull-secret")
                .set("imagePullSecrets", none)
                .with(sleeper("c").set("imagePullPolicy", "Always")),
            &["container c running"],
        ),
        case(
            &pod("no-image-of-init")
                .init(sleeper("i").image("nowhere:4"))
                .with(sleeper("c")),
            &["init i waiting ImagePullBackOff", "event Normal BackOff"],
        ),
        case(
            &pod("no-image-of-a-volume")
                .volume("v", volume)
                .with(sleeper("c").mount("v", "/v")),
            &["container c waiting ImagePullBackOff"],
        ),
    ]
}
