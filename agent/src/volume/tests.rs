//! Volumes of whole pods, with objects from a manifest.

use std::os::unix::fs::{MetadataExt, symlink};

use serde_json::{Value, json};

use super::*;
use crate::objects::manifest::ManifestObjects;

fn pod(volumes: Value, security: Value) -> Arc<Pod> {
    let value = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u-1", "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes, "securityContext": security},
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn volumes_in(root: &Path) -> PodVolumes {
    let mut objects = ManifestObjects::default();
    objects.add_config_map(
        serde_json::from_value(json!({
            "metadata": {"name": "kube-root-ca.crt", "namespace": "ns"}, "data": {"ca.crt": "CA"}
        }))
        .unwrap(),
    );
    objects.add_secret(
        serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "ns"}, "data": {"k": "dg=="}
        }))
        .unwrap(),
    );
    PodVolumes::new(root, Arc::new(objects), NodeFacts::default())
}

#[tokio::test]
async fn every_simple_kind_is_set_up_where_the_kubelet_puts_it() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes_in(dir.path());
    let pod = pod(
        json!([
            {"name": "e", "emptyDir": {}},
            {"name": "c", "configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "tls/ca"}]}},
            {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
            {"name": "d", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "p", "projected": {"sources": [
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]}},
            {"name": "h", "hostPath": {"path": dir.path(), "type": "Directory"}},
        ]),
        json!({}),
    );
    let mounted = volumes.mount(&pod).await.unwrap();
    let base = dir.path().join("pods/u-1/volumes");
    assert_eq!(mounted["e"], base.join("kubernetes.io~empty-dir/e"));
    assert_eq!(
        std::fs::metadata(&mounted["e"]).unwrap().mode() & 0o7777,
        0o777
    );
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(mounted["c"].join("tls/ca")), "CA");
    assert_eq!(read(mounted["s"].join("k")), "v");
    assert_eq!(
        std::fs::metadata(mounted["s"].join("k")).unwrap().mode() & 0o777,
        0o400
    );
    assert_eq!(read(mounted["d"].join("labels")), "app=\"x\"");
    assert_eq!(read(base.join("kubernetes.io~projected/p/ca.crt")), "CA");
    assert_eq!(read(mounted["p"].join("namespace")), "ns");
    assert_eq!(mounted["h"], dir.path());

    std::fs::write(mounted["e"].join("data"), "kept").unwrap();
    assert_eq!(
        volumes.mount(&pod).await.unwrap(),
        mounted,
        "setting up again changes nothing"
    );
    assert_eq!(read(mounted["e"].join("data")), "kept");
    assert_eq!(volumes.on_disk().await, [PodUid("u-1".into())]);
    volumes.unmount(&PodUid("u-1".into())).await.unwrap();
    volumes.unmount(&PodUid("u-1".into())).await.unwrap();
    assert!(volumes.on_disk().await.is_empty());
}

#[tokio::test]
async fn each_failure_names_its_volume_and_the_others_are_tried() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes_in(dir.path());
    let pod = pod(
        json!([
            {"name": "a", "configMap": {"name": "gone"}},
            {"name": "b", "secret": {"secretName": "gone"}},
            {"name": "c", "nfs": {"server": "x", "path": "/"}},
            {"name": "d", "gitRepo": {"repository": "x"}},
            {"name": "e", "configMap": {"name": "gone", "optional": true}},
            {"name": "f", "hostPath": {"path": "/proc/version", "type": "Directory"}},
        ]),
        json!({}),
    );
    let errors = volumes.mount(&pod).await.unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "MountVolume.SetUp failed for volume \"a\" : configmap \"gone\" not found",
            "MountVolume.SetUp failed for volume \"b\" : secret \"gone\" not found",
            "MountVolume.SetUp failed for volume \"c\" : volumes of kind nfs are not supported by this node",
            "MountVolume.SetUp failed for volume \"d\" : volumes of kind gitRepo are not supported by this node",
            "MountVolume.SetUp failed for volume \"f\" : hostPath type check failed: /proc/version is not a directory, it's a File",
        ]
    );
}

#[tokio::test]
async fn a_token_without_an_api_server_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let sources = json!([{"serviceAccountToken": {"path": "token"}}]);
    let pod = pod(
        json!([{"name": "t", "projected": {"sources": sources}}]),
        json!({}),
    );
    let errors = volumes_in(dir.path()).mount(&pod).await.unwrap_err();
    assert!(errors[0].message.contains("no API server"), "{errors:?}");
}

#[tokio::test]
async fn trust_bundles_without_an_api_server_are_refused_in_a_kubelets_words() {
    let dir = tempfile::tempdir().unwrap();
    let sources = json!([{"clusterTrustBundle": {"name": "b", "path": "ca.crt"}}]);
    let pod = pod(
        json!([{"name": "t", "projected": {"sources": sources}}]),
        json!({}),
    );
    let errors = volumes_in(dir.path()).mount(&pod).await.unwrap_err();
    assert_eq!(errors[0].message, crate::sinks::NO_TRUST_BUNDLES);
}

#[tokio::test]
async fn root_the_pods_group_owns_its_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let pod = pod(
        json!([{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}}]),
        json!({"fsGroup": 4242}),
    );
    let mounted = volumes_in(dir.path()).mount(&pod).await.unwrap();
    let empty = std::fs::metadata(&mounted["e"]).unwrap();
    assert_eq!((empty.gid(), empty.mode() & 0o7777), (4242, 0o2777));
    let secret = std::fs::metadata(mounted["s"].join("k")).unwrap();
    assert_eq!((secret.gid(), secret.mode() & 0o7777), (4242, 0o440));
}

#[tokio::test]
async fn root_a_volume_in_memory_is_a_tmpfs_of_its_size_and_goes_with_the_pod() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes_in(dir.path());
    let pod = pod(
        json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]),
        json!({}),
    );
    let path = volumes.mount(&pod).await.unwrap()["m"].clone();
    volumes.mount(&pod).await.unwrap();
    let stat = rustix::fs::statvfs(&path).unwrap();
    let uid = PodUid("u-1".into());
    let removed = volumes.unmount(&uid).await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(path.to_str().unwrap()), "still mounted");
    assert!(removed.is_ok() && !path.exists(), "{removed:?}");
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 20);
}

#[tokio::test]
async fn removal_never_follows_what_a_container_has_planted() {
    let dir = tempfile::tempdir().unwrap();
    let canary = dir.path().join("canary");
    std::fs::create_dir(&canary).unwrap();
    std::fs::write(canary.join("file"), "alive").unwrap();
    let volumes = volumes_in(dir.path());
    let pod = pod(json!([{"name": "e", "emptyDir": {}}]), json!({}));
    let path = volumes.mount(&pod).await.unwrap()["e"].clone();
    symlink(&canary, path.join("link")).unwrap();
    let beside = path.parent().unwrap().join("other");
    symlink(&canary, &beside).unwrap();
    volumes.unmount(&PodUid("u-1".into())).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(canary.join("file")).unwrap(),
        "alive"
    );
}

#[tokio::test]
async fn a_uid_or_name_that_is_a_path_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("pods")).unwrap();
    std::fs::create_dir(dir.path().join("canary")).unwrap();
    let volumes = volumes_in(dir.path());
    for uid in ["../canary", "..", ".", "", "a/b"] {
        volumes.unmount(&PodUid(uid.into())).await.unwrap();
    }
    assert!(dir.path().join("canary").exists());
    let pod = pod(json!([{"name": "../x", "emptyDir": {}}]), json!({}));
    assert!(volumes.mount(&pod).await.is_err());
}
