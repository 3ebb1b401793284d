//! Taints that evict pods from a node, and let no others run there.

use std::time::Duration;

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{Pod, pod, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

use super::static_pods::Manifest;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        taint_evicts_who_does_not_tolerate_it_at_once_or_any_longer,
        tainted_node_takes_and_keeps_only_who_tolerates_it,
    ]
}

/// What the node is tainted with.
const TAINT: &str = "story=evicts:NoExecute";

/// A pod of n1.
fn server(name: &str) -> Pod {
    let pod = pod(name).with(testapp("main", "serve"));
    pod.bound_to("n1")
}

fn taint_evicts_who_does_not_tolerate_it_at_once_or_any_longer(space: &Space<'_>) -> Result<()> {
    space.apply(&server("stranger").manifest())?;
    space.apply(&server("patient").tolerating("story", Some(6)).manifest())?;
    space.until_all_ready(2, 30)?;
    let tainted = space.taint("n1", TAINT)?;
    space.until_gone("stranger", 15)?;
    space.until_gone("patient", 25)?;
    let stayed = tainted.since.elapsed();
    ensure!(stayed >= Duration::from_secs(6), "{stayed:?}");
    Ok(())
}

fn tainted_node_takes_and_keeps_only_who_tolerates_it(space: &Space<'_>) -> Result<()> {
    let _file = Manifest::write(space, &pod("static").with(testapp("main", "serve")))?;
    space.apply(&server("tolerant").tolerating("story", None).manifest())?;
    let names = ["static-n1", "tolerant"];
    let [first, second] = names.map(|name| space.until_ready(name));
    let before = [first?, second?];

    let tainted = space.taint("n1", TAINT)?;
    space.until_refused(&server("late"))?;
    space.apply(&server("welcome").tolerating("story", None).manifest())?;
    space.until_ready("welcome")?;
    for before in before {
        let after = space.until_ready(cluster::name(&before))?;
        let same = cluster::container_id(&before, "main") == cluster::container_id(&after, "main");
        ensure!(same, "{}", cluster::describe(&after));
    }
    drop(tainted);
    space.apply(&server("later").manifest())?;
    space.until_ready("later").map(drop)
}
