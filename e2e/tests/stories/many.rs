//! Many pods at once, and on two nodes.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::{Value, json};

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab: fifty_pods_at_once_become_ready_and_go, pods_of_two_nodes_reach_each_other]
}

fn fifty_pods_at_once_become_ready_and_go(space: &Space<'_>) -> Result<()> {
    let pods: Vec<Value> = (0..50)
        .map(|n| {
            pod(&format!("p{n}"))
                .on("n1")
                .with(testapp("main", "serve"))
                .manifest()
        })
        .collect();
    space.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }))?;
    let pods = space.until_all_ready(50, 60)?;
    let addresses: BTreeSet<&str> = pods.iter().map(cluster::ip).collect();
    ensure!(
        addresses.len() == 50,
        "{} addresses for 50 pods",
        addresses.len()
    );
    ensure!(
        pods.iter().all(|p| cluster::restarts(p, "main") == 0),
        "something restarted"
    );
    let began = Instant::now();
    space.kubectl("delete pods --all --wait=false")?;
    space.until_no_pods(60)?;
    ensure!(
        began.elapsed().as_secs() < 30,
        "deletion took {:?}",
        began.elapsed()
    );
    Ok(())
}

fn pods_of_two_nodes_reach_each_other(space: &Space<'_>) -> Result<()> {
    for node in ["n1", "n2"] {
        space.apply(
            &pod(&format!("web-{node}"))
                .on(node)
                .with(testapp("main", &format!("serve 8080 {node}")))
                .manifest(),
        )?;
        space.apply(
            &pod(&format!("client-{node}"))
                .on(node)
                .with(shell("main", "sleep 1000"))
                .manifest(),
        )?;
    }
    space.until_all_ready(4, 30)?;
    for node in ["n1", "n2"] {
        let ip = cluster::ip(&space.pod(&format!("web-{node}"))?).to_owned();
        for client in ["n1", "n2"] {
            let text = space.kubectl(&format!(
                "exec client-{client} -- timeout 5 wget -qO- http://{ip}:8080/"
            ))?;
            ensure!(
                text == format!("{node}\n"),
                "from {client} to {node}: {text:?}"
            );
        }
    }
    Ok(())
}
