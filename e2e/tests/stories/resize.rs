//! In-place resize: by `kubectl patch --subresource resize`, as seen in the containers' cgroups.

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![Node:
        a_running_container_gets_other_limits_without_a_restart,
        a_resize_without_room_is_deferred_until_others_are_gone,
    ]
}

/// Prints quota and memory limit of the container, of whichever cgroup version.
const LIMITS: &str = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null \
    || { cut -d' ' -f1 /sys/fs/cgroup/cpu.max; cat /sys/fs/cgroup/memory.max; }";

fn patch(cpu: &str, memory: &str) -> String {
    let amounts = json!({"cpu": cpu, "memory": memory});
    let resources = json!({"limits": amounts, "requests": amounts});
    json!({"spec": {"containers": [{"name": "main", "resources": resources}]}}).to_string()
}

/// The limit on CPU that the status has in force.
fn cpu_in_force(pod: &Pod) -> String {
    let resources = cluster::container(pod, "main").and_then(|status| status.resources.clone());
    let limits = resources
        .and_then(|resources| resources.limits)
        .unwrap_or_default();
    limits
        .get("cpu")
        .map(|cpu| cpu.0.clone())
        .unwrap_or_default()
}

fn condition_reason(pod: &Pod, kind: &str) -> String {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut found = conditions.filter(|c| c.type_ == kind);
    found
        .next()
        .and_then(|c| c.reason.clone())
        .unwrap_or_default()
}

fn a_running_container_gets_other_limits_without_a_restart(space: &Space<'_>) -> Result<()> {
    let main = shell("main", "sleep 1000").limits("64Mi", "100m");
    space.apply(&pod("grows").with(main).manifest())?;
    let before = space.until_ready("grows")?;
    for (cpu, memory, quota, bytes) in [
        ("300m", "128Mi", "30000", 128 << 20),
        ("200m", "32Mi", "20000", 32 << 20),
    ] {
        let patch = patch(cpu, memory);
        space.kubectl_with("patch pod grows --subresource resize --patch", &[&patch])?;
        let pod = space.until_pod("grows", "resized", 20, |p| {
            cpu_in_force(p) == cpu && cluster::condition(p, "PodResizeInProgress").is_empty()
        })?;
        ensure!(
            cluster::restarts(&pod, "main") == 0,
            "{}",
            cluster::describe(&pod)
        );
        ensure!(cluster::container_id(&pod, "main") == cluster::container_id(&before, "main"));
        let seen = space.kubectl_with("exec grows --", &["sh", "-c", LIMITS])?;
        ensure!(
            seen.split_whitespace().eq([quota, &bytes.to_string()]),
            "{seen:?}"
        );
    }
    space.until_event(
        "grows",
        &[
            "ResizeCompleted",
            "Pod resize completed: {\"containers\":[{\"name\":\"main\"",
        ],
        10,
    )?;
    Ok(())
}

fn a_resize_without_room_is_deferred_until_others_are_gone(space: &Space<'_>) -> Result<()> {
    // A node of the lab has the two CPUs of the machine, or more; the server refuses what is beyond the node.
    let node = space.kubectl("get nodes n1 -o jsonpath={.status.allocatable.cpu}")?;
    let cpus: u32 = node.trim().parse().context("CPUs of n1")?;
    let most = format!("{}m", cpus * 1000 - 600);
    let main = |cpu: &str| shell("main", "sleep 1000").limits("64Mi", cpu);
    space.apply(&pod("large").on("n1").with(main(&most)).manifest())?;
    space.until_ready("large")?;
    space.apply(&pod("small").on("n1").with(main("100m")).manifest())?;
    space.until_ready("small")?;
    let patch = patch(&most, "64Mi");
    space.kubectl_with("patch pod small --subresource resize --patch", &[&patch])?;
    let pod = space.until_pod("small", "deferred", 20, |p| {
        condition_reason(p, "PodResizePending") == "Deferred"
    })?;
    ensure!(cpu_in_force(&pod) == "100m", "{}", cluster::describe(&pod));
    let cause = "Node didn't have enough resource: cpu, requested: ";
    space.until_event("small", &["ResizeDeferred", cause], 10)?;
    space.kubectl("delete pod large")?;
    let pod = space.until_pod("small", "resized", 20, |p| {
        cpu_in_force(p) == most && condition_reason(p, "PodResizePending").is_empty()
    })?;
    ensure!(
        cluster::restarts(&pod, "main") == 0,
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}
