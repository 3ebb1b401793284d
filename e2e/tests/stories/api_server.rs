//! The API server away and back, and what the nodes asked of it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::lab::{NODES, Request};
use hanok_e2e::manifest::{pod, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![
        Node:
        api_server_away_for_thirty_seconds_restarts_nothing;
        Lab:
        node_says_what_it_is,
        nodes_never_ask_for_what_they_may_not_have,
    ]
}

fn api_server_away_for_thirty_seconds_restarts_nothing(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("web")
            .on("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    space.apply(
        &pod("ends")
            .on("n1")
            .restart("Never")
            .with(testapp("main", "crash 9 8000"))
            .manifest(),
    )?;
    let before = space.until_ready("web")?;
    space.until_pod("ends", "running", 20, |p| cluster::is_running(p, "main"))?;
    space.lab()?.stop_api_server()?;
    std::thread::sleep(Duration::from_secs(30));
    space.lab()?.start_api_server()?;
    let ends = space.until_pod("ends", "over", 60, |p| cluster::phase(p) == "Failed")?;
    ensure!(
        cluster::ended(&ends, "main") == Some((9, "Error")),
        "{}",
        cluster::describe(&ends)
    );
    space
        .lab()?
        .node("n1")
        .wait_ready(Duration::from_secs(60))?;
    // It names its node: the scheduler takes its time to come back.
    space.apply(
        &pod("next")
            .bound_to("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    space.until_ready("next")?;
    let after = space.until_ready("web")?;
    ensure!(cluster::container_id(&before, "main") == cluster::container_id(&after, "main"));
    ensure!(
        cluster::restarts(&after, "main") == 0,
        "{}",
        cluster::describe(&after)
    );
    Ok(())
}

fn node_says_what_it_is(space: &Space<'_>) -> Result<()> {
    let text = space.kubectl("get nodes -o json")?;
    let nodes: serde_json::Value = serde_json::from_str(&text)?;
    for (node, name) in nodes["items"].as_array().into_iter().flatten().zip(NODES) {
        let status = &node["status"];
        ensure!(
            node["metadata"]["labels"]["kubernetes.io/hostname"] == name,
            "{node}"
        );
        ensure!(
            node["metadata"]["labels"]["kubernetes.io/os"] == "linux",
            "{node}"
        );
        let address = space.lab()?.node(name).address();
        let addresses = status["addresses"].as_array().into_iter().flatten();
        ensure!(
            addresses
                .clone()
                .any(|a| a["type"] == "InternalIP" && a["address"] == address.as_str()),
            "{status}"
        );
        for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
            ensure!(
                !status["allocatable"][resource].is_null(),
                "{resource} is not in {status}"
            );
        }
        let runtime = status["nodeInfo"]["containerRuntimeVersion"]
            .as_str()
            .unwrap_or_default();
        ensure!(runtime.starts_with("hanok://"), "{status}");
        for kind in ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"] {
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let wanted = if kind == "Ready" { "True" } else { "False" };
            ensure!(
                conditions
                    .clone()
                    .any(|c| c["type"] == kind && c["status"] == wanted),
                "{kind} in {status}"
            );
        }
        let lease = space.kubectl(&format!(
            "get lease {name} -n kube-node-lease -o jsonpath={{.spec.holderIdentity}}"
        ))?;
        ensure!(lease == name, "the lease is held by {lease:?}");
    }
    Ok(())
}

fn nodes_never_ask_for_what_they_may_not_have(space: &Space<'_>) -> Result<()> {
    let audit = space.lab()?.audit();
    for node in NODES {
        let requests = audit.requests_of(&format!("system:node:{node}"));
        ensure!(
            requests.len() > 10,
            "{node} has asked for {} things",
            requests.len()
        );
        // The authorizer learns of a binding by a watch, as the node does: whoever is first must ask again. That there is
        // no such object is only said to who may have it.
        let granted = requests.iter().filter(|r| matches!(r.code, 200..300 | 404));
        let granted: BTreeSet<_> = granted.map(Request::what).collect();
        let refused: Vec<_> = requests
            .iter()
            .filter(|r| matches!(r.code, 401 | 403) && !granted.contains(&r.what()))
            // A namespace that is going takes nothing new from anybody, not even an event of its last pod.
            .filter(|r| r.causes != ["NamespaceTerminating"])
            .collect();
        ensure!(refused.is_empty(), "{node} was refused {refused:#?}");
        // What did not change for long, and a server that comes back, are no reasons to ask again and again.
        let read = requests
            .iter()
            .filter(|r| r.verb != "patch" && r.verb != "create");
        ensure!(
            read.clone().count() < 3000,
            "{node} has read {} times",
            read.count()
        );
    }
    Ok(())
}
