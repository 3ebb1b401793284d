//! What a container cannot do, and what it is held to.

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![
        Cluster:
        security_context_decides_user_groups_and_capabilities,
        memory_limit_ends_in_oom_killed;
        // A kubelet's defaults are weaker, and its message about the handler is shorter.
        Node:
        ordinary_container_is_refused_what_would_reach_the_node,
        pod_shares_network_ipc_and_host_name_and_nothing_else,
        pods_with_users_of_their_own_share_no_id_and_reach_each_other,
        unknown_runtime_handler_keeps_the_pod_pending,
        limits_are_in_the_cgroup;
        Lab:
        host_network_pod_has_the_nodes_address,
    ]
}

fn ordinary_container_is_refused_what_would_reach_the_node(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("probe")
            .restart("Never")
            .with(testapp("main", "probe"))
            .manifest(),
    )?;
    space.until_pod("probe", "ended", 30, |p| {
        cluster::ended(p, "main").is_some()
    })?;
    let log = space.kubectl("logs probe")?;
    let allowed: Vec<&str> = log.lines().filter(|l| l.starts_with("ALLOWED")).collect();
    ensure!(allowed.is_empty() && log.lines().count() > 15, "{log}");
    Ok(())
}

fn pod_shares_network_ipc_and_host_name_and_nothing_else(space: &Space<'_>) -> Result<()> {
    let two = pod("two")
        .with(shell("one", "sleep 1000"))
        .with(shell("other", "sleep 1000"));
    space.apply(&two.manifest())?;
    space.until_ready("two")?;
    let namespaces = |container: &str| {
        let list = "for n in net ipc uts pid mnt cgroup; do readlink /proc/1/ns/$n; done";
        space.kubectl_with(&format!("exec two -c {container} --"), &["sh", "-c", list])
    };
    let (one, other) = (namespaces("one")?, namespaces("other")?);
    let shared: Vec<bool> = one
        .lines()
        .zip(other.lines())
        .map(|(a, b)| a == b)
        .collect();
    ensure!(
        shared == [true, true, true, false, false, false],
        "{one}{other}"
    );
    Ok(())
}

fn pods_with_users_of_their_own_share_no_id_and_reach_each_other(space: &Space<'_>) -> Result<()> {
    let features = "get nodes n1 -o jsonpath={.status.runtimeHandlers[*].features.userNamespaces}";
    let features = space.kubectl(features)?;
    if features.contains("false") {
        return users_are_refused_with_the_reason(space);
    }
    ensure!(features.contains("true"), "the node says {features:?}");
    for name in ["one", "two"] {
        let main = shell(
            "main",
            "echo $(id -u) > /data/who; httpd -p 8080 -h /data; sleep 1000",
        )
        .mount("data", "/data");
        let pod = pod(name)
            .on("n1")
            .set("hostUsers", false)
            .volume("data", json!({ "emptyDir": {} }))
            .with(main);
        space.apply(&pod.manifest())?;
    }
    let mut first_ids = Vec::new();
    for name in ["one", "two"] {
        space.until_ready(name)?;
        let map = space.kubectl(&format!("exec {name} -- cat /proc/self/uid_map"))?;
        let words: Vec<u64> = map
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect();
        let &[0, first, 65_536] = words.as_slice() else {
            anyhow::bail!("{name} has the map {map:?}");
        };
        ensure!(
            first >= 65_536 && first % 65_536 == 0,
            "{name} begins at {first}"
        );
        let owner = space.kubectl(&format!(
            "exec {name} -- stat -c %u:%g /data/who /etc/hosts"
        ))?;
        ensure!(owner == "0:0\n0:0\n", "{name} sees the owners {owner:?}");
        first_ids.push(first);
    }
    ensure!(first_ids[0] != first_ids[1], "both begin at {first_ids:?}");
    let ip = cluster::ip(&space.pod("two")?).to_owned();
    let who = space.kubectl(&format!("exec one -- wget -qO- http://{ip}:8080/who"))?;
    ensure!(who == "0\n", "the other one is {who:?}");
    Ok(())
}

/// On a machine whose kernel or filesystem has not got what it takes.
fn users_are_refused_with_the_reason(space: &Space<'_>) -> Result<()> {
    let pod = pod("refused")
        .on("n1")
        .set("hostUsers", false)
        .with(shell("main", "sleep 1000"));
    space.apply(&pod.manifest())?;
    let words = [
        "FailedCreatePodSandBox",
        "does not support user namespaces:",
    ];
    space.until_event("refused", &words, 20).map(drop)
}

fn security_context_decides_user_groups_and_capabilities(space: &Space<'_>) -> Result<()> {
    let look = "id -u; id -g; id -G; grep CapEff /proc/self/status; touch /x 2>&1; touch /data/y && echo wrote";
    let main = shell("main", look).mount("data", "/data").set(
        "securityContext",
        json!({
            "runAsUser": 1000, "runAsGroup": 2000, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
        }),
    );
    let pod = pod("user")
        .restart("Never")
        .set("securityContext", json!({ "fsGroup": 3000 }))
        .volume("data", json!({ "emptyDir": {} }))
        .with(main);
    space.apply(&pod.manifest())?;
    space.until_phase("user", "Succeeded")?;
    let log = space.kubectl("logs user")?;
    let lines: Vec<&str> = log.lines().collect();
    let wanted = ["1000", "2000", "2000 3000", "CapEff:\t0000000000000000"];
    ensure!(lines.len() == 6 && lines[..4] == wanted, "{lines:?}");
    ensure!(
        lines[4].contains("Read-only file system") && lines[5] == "wrote",
        "{lines:?}"
    );
    Ok(())
}

fn memory_limit_ends_in_oom_killed(space: &Space<'_>) -> Result<()> {
    let eats = testapp("main", "eat 128").limits("32Mi", "500m");
    space.apply(&pod("eats").restart("Never").with(eats).manifest())?;
    let pod = space.until_phase("eats", "Failed")?;
    ensure!(
        cluster::ended(&pod, "main") == Some((137, "OOMKilled")),
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}

fn unknown_runtime_handler_keeps_the_pod_pending(space: &Space<'_>) -> Result<()> {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": "nonesuch" }, "handler": "nonesuch",
    });
    space.apply(&class)?;
    space.apply(
        &pod("odd")
            .set("runtimeClassName", "nonesuch")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    let told = space.until_event("odd", &["FailedCreatePodSandBox", "nonesuch", "runc"], 20);
    let phase = cluster::phase(&space.pod("odd")?).to_owned();
    space.kubectl("delete pod odd --now")?;
    space.kubectl("delete runtimeclass nonesuch")?;
    told?;
    ensure!(phase == "Pending", "the pod is {phase}");
    Ok(())
}

fn host_network_pod_has_the_nodes_address(space: &Space<'_>) -> Result<()> {
    let node = space.lab()?.node("n1");
    let host = pod("host")
        .on("n1")
        .set("hostNetwork", true)
        .with(testapp("main", "serve 18080 node"));
    space.apply(&host.manifest())?;
    space.apply(
        &pod("client")
            .on("n2")
            .with(shell("main", "sleep 1000"))
            .manifest(),
    )?;
    let pod = space.until_ready("host")?;
    ensure!(
        cluster::ip(&pod) == node.address(),
        "{}",
        cluster::describe(&pod)
    );
    space.until_ready("client")?;
    let text = space.kubectl(&format!(
        "exec client -- wget -qO- http://{}:18080/",
        node.address()
    ))?;
    ensure!(text == "node\n", "the node's port answers {text:?}");
    Ok(())
}

fn limits_are_in_the_cgroup(space: &Space<'_>) -> Result<()> {
    let held = shell("main", "sleep 1000").limits("48Mi", "250m");
    space.apply(&pod("held").on("n1").with(held).manifest())?;
    space.until_ready("held")?;
    // The container's view of its own cgroup, of whichever version.
    let values = |v1: &str, v2: &str| {
        let script = format!("cd /sys/fs/cgroup; cat {v1} 2>/dev/null || cat {v2}");
        space.kubectl_with("exec held --", &["sh", "-c", &script])
    };
    let memory = values("memory/memory.limit_in_bytes", "memory.max")?;
    ensure!(memory.trim() == (48 << 20).to_string(), "{memory:?}");
    let cpu = values("cpu/cpu.cfs_quota_us", "cpu.max")?;
    ensure!(
        ["25000", "25000 100000"].contains(&cpu.trim()),
        "cpu limit {cpu:?}"
    );
    Ok(())
}
