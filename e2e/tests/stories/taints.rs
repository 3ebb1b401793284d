//! Taints that evict pods from a node, and let no others run there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{Pod, pod, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::json;

use super::static_pods::Manifest;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab: taint_that_evicts_spares_whoever_tolerates_it]
}

/// What the node is tainted with.
const TAINT: &str = "story=evicts:NoExecute";

/// A tainted node; it is no longer when the story is over, however that ends.
struct Tainted<'a> {
    space: &'a Space<'a>,
    since: Instant,
}

impl<'a> Tainted<'a> {
    fn n1(space: &'a Space<'a>) -> Result<Self> {
        space.kubectl(&format!("taint node n1 {TAINT}"))?;
        Ok(Self {
            space,
            since: Instant::now(),
        })
    }
}

impl Drop for Tainted<'_> {
    fn drop(&mut self) {
        let _ = self.space.kubectl(&format!("taint node n1 {TAINT}-"));
    }
}

/// Of n1, with the time for which it tolerates the taint; none for ever.
fn tolerant(name: &str, seconds: Option<u32>) -> Pod {
    let mut toleration = json!({"key": "story", "operator": "Exists", "effect": "NoExecute"});
    if let Some(seconds) = seconds {
        toleration["tolerationSeconds"] = seconds.into();
    }
    let pod = pod(name).with(testapp("main", "serve"));
    pod.set("nodeName", "n1")
        .set("tolerations", json!([toleration]))
}

fn taint_that_evicts_spares_whoever_tolerates_it(space: &Space<'_>) -> Result<()> {
    let stranger = |name: &str| {
        let pod = pod(name).with(testapp("main", "serve"));
        pod.set("nodeName", "n1")
    };
    space.apply(&stranger("stranger").manifest())?;
    space.apply(&tolerant("patient", Some(6)).manifest())?;
    space.apply(&tolerant("tolerant", None).manifest())?;
    let file = Manifest::write(space, &pod("static").with(testapp("main", "serve")))?;
    let names = ["stranger", "patient", "tolerant", "static-n1"];
    let before = names.map(|name| space.until_ready(name));
    let [stranger_before, _, tolerant_before, static_before] = before;
    stranger_before?;

    let tainted = Tainted::n1(space)?;
    let is_gone = |name: &str, seconds: u64| {
        space.until(&format!("{name} to be gone"), seconds, || {
            let pods = space.pods()?;
            let found = pods.iter().find(|pod| cluster::name(pod) == name);
            found.map_or(Ok(()), |pod| anyhow::bail!(cluster::describe(pod)))
        })
    };
    is_gone("stranger", 15)?;
    is_gone("patient", 25)?;
    let stayed = tainted.since.elapsed();
    ensure!(stayed >= Duration::from_secs(6), "{stayed:?}");

    never_runs(space, &stranger("late"))?;
    space.apply(&tolerant("welcome", None).manifest())?;
    space.until_ready("welcome")?;
    for before in [tolerant_before?, static_before?] {
        let after = space.until_ready(cluster::name(&before))?;
        let same = cluster::container_id(&before, "main") == cluster::container_id(&after, "main");
        ensure!(same, "{}", cluster::describe(&after));
    }
    drop(tainted);
    space.apply(
        &pod("later")
            .on("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    space.until_ready("later")?;
    drop(file);
    Ok(())
}

/// The node does not run the pod. Whoever evicts deletes it at once, mostly before it can be refused: a finalizer keeps it.
fn never_runs(space: &Space<'_>, pod: &Pod) -> Result<()> {
    let mut manifest = pod.manifest();
    let name = manifest["metadata"]["name"].as_str().context("a name")?;
    let name = name.to_owned();
    manifest["metadata"]["finalizers"] = json!(["hanok.test/kept"]);
    space.apply(&manifest)?;
    let failed = space.until_phase(&name, "Failed");
    let events = space.events(&name);
    space.kubectl(&format!(
        "patch pod {name} --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}"
    ))?;
    let status = failed?.status.context("a status")?;
    let mut containers = status.container_statuses.iter().flatten();
    ensure!(
        containers.all(|container| container.container_id.is_none()),
        "{status:?}"
    );
    let events = events?;
    ensure!(
        !events.iter().any(|event| event.starts_with("Created")),
        "{events:#?}"
    );
    Ok(())
}
