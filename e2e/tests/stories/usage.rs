//! What pods use, as metrics-server and `kubectl get --raw` read it; and what is told when memory runs out.

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

pub(crate) fn stories() -> Vec<Story> {
    stories![
        Cluster:
        usage_of_a_pod_is_in_summary_and_metrics,
        child_killed_for_want_of_memory_is_an_event,
    ]
}

fn usage_of_a_pod_is_in_summary_and_metrics(space: &Space<'_>) -> Result<()> {
    let script =
        "dd if=/dev/zero of=/data/file bs=1M count=3 2>/dev/null; echo written; sleep 1000";
    let user = pod("user")
        .volume("data", json!({ "emptyDir": {} }))
        .with(testapp("eats", "eat 20").limits("64Mi", "500m"))
        .with(shell("writes", script).mount("data", "/data"));
    space.apply(&user.manifest())?;
    let pod = space.until_ready("user")?;
    let node = pod.spec.context("spec")?.node_name.context("node name")?;
    let raw = |path: &str| space.kubectl(&format!("get --raw /api/v1/nodes/{node}/proxy/{path}"));
    space.until("what the pod has taken", 20, || {
        let summary: Value = serde_json::from_str(&raw("stats/summary")?)?;
        let pods = summary["pods"].as_array().context("pods")?;
        let ours = pods
            .iter()
            .find(|one| one["podRef"]["namespace"] == space.name());
        let ours = ours.context("the pod is not in the summary")?;
        let used = |value: &Value| value.as_u64().unwrap_or(0);
        let eats = ours["containers"].as_array().context("containers")?;
        let eats = eats
            .iter()
            .find(|one| one["name"] == "eats")
            .context("eats")?;
        ensure!(
            used(&eats["memory"]["workingSetBytes"]) >= 20 * MIB,
            "{eats}"
        );
        ensure!(
            used(&eats["memory"]["availableBytes"]) <= 44 * MIB,
            "{eats}"
        );
        ensure!(used(&eats["cpu"]["usageCoreNanoSeconds"]) > 0, "{eats}");
        ensure!(ours["network"]["name"] == "eth0", "{ours}");
        let volumes = ours["volume"].as_array().context("volumes")?;
        let data = volumes
            .iter()
            .find(|one| one["name"] == "data")
            .context("data")?;
        ensure!(used(&data["usedBytes"]) >= 3 * MIB, "{data}");
        ensure!(
            used(&ours["ephemeral-storage"]["usedBytes"]) >= 3 * MIB,
            "{ours}"
        );
        ensure!(used(&summary["node"]["memory"]["workingSetBytes"]) > 20 * MIB);
        Ok(())
    })?;
    let resource = raw("metrics/resource")?;
    let series = format!(
        "container_memory_working_set_bytes{{container=\"eats\",namespace=\"{}\",pod=\"user\"}} ",
        space.name()
    );
    let line = resource.lines().find_map(|line| line.strip_prefix(&series));
    let bytes: f64 = line
        .context("the container's series")?
        .split(' ')
        .next()
        .unwrap_or("")
        .parse()?;
    ensure!(bytes >= 20.0 * 1024.0 * 1024.0, "{bytes}");
    for name in [
        "node_cpu_usage_seconds_total",
        "pod_cpu_usage_seconds_total",
        "container_start_time_seconds",
    ] {
        ensure!(
            resource.contains(&format!("# TYPE {name} ")),
            "{name} is not in {resource}"
        );
    }
    let all = raw("metrics/cadvisor")?;
    ensure!(
        all.contains("container_network_receive_bytes_total{"),
        "{all}"
    );
    Ok(())
}

fn child_killed_for_want_of_memory_is_an_event(space: &Space<'_>) -> Result<()> {
    let script = "sh -c 'exec tail /dev/zero'; echo survived; sleep 1000";
    let loses = pod("loses").with(shell("main", script).limits("32Mi", "500m"));
    space.apply(&loses.manifest())?;
    space.until_event("loses", &["OOMKilled", "container main"], 30)?;
    // On cgroup v2 the whole container goes, unless the node says otherwise.
    space.until("how it goes on", 30, || {
        let restarts = cluster::restarts(&space.pod("loses")?, "main");
        ensure!(restarts > 0 || space.kubectl("logs loses")?.contains("survived"));
        Ok(())
    })
}
