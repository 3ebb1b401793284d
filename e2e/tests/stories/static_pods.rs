//! Static pods: the node's own, which the cluster only sees.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{Pod, pod, testapp};
use hanok_e2e::network::in_namespace;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::Value;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        static_pod_follows_its_file_and_is_shown_by_a_mirror,
        mirror_pod_that_is_deleted_comes_back_and_its_pod_runs_on,
        static_pod_runs_without_an_api_server,
    ]
}

/// A manifest in the directory of n1; it goes with the story, however that ends.
pub(crate) struct Manifest(PathBuf);

impl Manifest {
    pub(crate) fn write(space: &Space<'_>, pod: &Pod) -> Result<Self> {
        let directory = space.lab()?.node("n1").manifests();
        let manifest = Self(directory.join(format!("{}.yaml", space.name())));
        manifest.change(space, pod)?;
        Ok(manifest)
    }

    fn change(&self, space: &Space<'_>, pod: &Pod) -> Result<()> {
        let mut value: Value = pod.manifest();
        value["metadata"]["namespace"] = space.name().into();
        let text = value
            .to_string()
            .replace("REGISTRY", &space.lab()?.registry());
        let hidden = self.0.with_file_name(".being-written");
        fs::write(&hidden, text)?;
        Ok(fs::rename(hidden, &self.0)?)
    }
}

impl Drop for Manifest {
    fn drop(&mut self) {
        // Gone already, when the story has come to its end.
        let _ = fs::remove_file(&self.0);
    }
}

fn static_pod_follows_its_file_and_is_shown_by_a_mirror(space: &Space<'_>) -> Result<()> {
    let web = |word: &str| pod("web").with(testapp("main", &format!("serve 8080 {word}")));
    let file = Manifest::write(space, &web("one"))?;
    let mirror = space.until_ready("web-n1")?;
    let annotations = mirror.metadata.annotations.clone().unwrap_or_default();
    let hash = &annotations["kubernetes.io/config.hash"];
    ensure!(annotations["kubernetes.io/config.mirror"] == *hash && hash.len() == 32);
    ensure!(annotations["kubernetes.io/config.source"] == "file");
    ensure!(
        space
            .kubectl("exec web-n1 -- /testapp get http://127.0.0.1:8080/")?
            .trim()
            == "one"
    );
    space.until_event("web-n1", &["Started"], 10)?;
    file.change(space, &web("two"))?;
    space.until_pod("web-n1", "the new one", 30, |pod| {
        cluster::is_ready(pod) && pod.metadata.uid != mirror.metadata.uid
    })?;
    ensure!(
        space
            .kubectl("exec web-n1 -- /testapp get http://127.0.0.1:8080/")?
            .trim()
            == "two"
    );
    drop(file);
    space.until_no_pods(20)
}

fn mirror_pod_that_is_deleted_comes_back_and_its_pod_runs_on(space: &Space<'_>) -> Result<()> {
    let file = Manifest::write(space, &pod("web").with(testapp("main", "serve")))?;
    let mut before = space.until_ready("web-n1")?;
    for how in ["--wait=false", "--force --grace-period=0"] {
        space.kubectl(&format!("delete pod web-n1 {how}"))?;
        let after = space.until_pod("web-n1", "back", 20, |pod| {
            cluster::is_ready(pod) && pod.metadata.uid != before.metadata.uid
        })?;
        ensure!(cluster::container_id(&before, "main") == cluster::container_id(&after, "main"));
        ensure!(cluster::restarts(&after, "main") == 0);
        before = after;
    }
    let node = space.lab()?.node("n1");
    node.kill()?;
    node.start()?;
    node.wait_ready(Duration::from_secs(30))?;
    let after = space.until_ready("web-n1")?;
    ensure!(
        before.metadata.uid == after.metadata.uid,
        "the mirror is another"
    );
    ensure!(cluster::container_id(&before, "main") == cluster::container_id(&after, "main"));
    drop(file);
    space.until_no_pods(20)
}

fn static_pod_runs_without_an_api_server(space: &Space<'_>) -> Result<()> {
    let node = space.lab()?.node("n1");
    space.lab()?.stop_api_server()?;
    node.kill()?;
    let host = pod("host")
        .set("hostNetwork", true)
        .with(testapp("main", "serve 18099 alone"));
    let file = Manifest::write(space, &host)?;
    node.start()?;
    let answer = space.until("the pod to answer", 30, || {
        let url = ["wget", "-qO-", "http://127.0.0.1:18099/"];
        in_namespace(&node.netns(), &url)
    });
    space.lab()?.start_api_server()?;
    ensure!(answer?.trim() == "alone");
    node.wait_ready(Duration::from_secs(60))?;
    space.until_ready("host-n1")?;
    drop(file);
    space.until_no_pods(20)
}
