//! `/metrics/resource`: processor time and memory, what metrics-server reads.

use std::time::SystemTime;

use hanok_runtime::api::{CgroupStats, ContainerStats, SandboxStats};

use super::Snapshot;
use super::exposition::{Kind, Page, Sample, count};

/// The page. Names and labels are the kubelet's.
pub(crate) fn render(snapshot: &Snapshot) -> String {
    let mut page = Page::default();
    containers(snapshot, &mut page);
    node(snapshot, &mut page);
    pods(snapshot, &mut page);
    let fine = Sample {
        labels: Vec::new(),
        value: 0.0,
        at: None,
    };
    let help = "[STABLE] Whether reading failed.";
    page.family("resource_scrape_error", Kind::Gauge, help, vec![fine]);
    page.text()
}

/// One family over all containers.
fn of_containers(
    snapshot: &Snapshot,
    value: impl Fn(&ContainerStats) -> Option<f64>,
) -> Vec<Sample> {
    let each = |sandbox: &SandboxStats, container: &ContainerStats| {
        Some(Sample {
            labels: vec![
                ("container", container.name.clone()),
                ("namespace", sandbox.namespace.clone()),
                ("pod", sandbox.name.clone()),
            ],
            value: value(container)?,
            at: Some(container.at),
        })
    };
    let sandboxes = snapshot.sandboxes.iter();
    sandboxes
        .flat_map(|sandbox| {
            let containers = sandbox.containers.iter();
            containers
                .filter_map(|container| each(sandbox, container))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn containers(snapshot: &Snapshot, page: &mut Page) {
    page.family(
        "container_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Processor time of the container, seconds.",
        of_containers(snapshot, |one| cpu(&one.cgroup)),
    );
    page.family(
        "container_memory_working_set_bytes",
        Kind::Gauge,
        "[STABLE] Memory of the container without unused page cache, bytes.",
        of_containers(snapshot, |one| working_set(&one.cgroup)),
    );
    page.family(
        "container_start_time_seconds",
        Kind::Gauge,
        "[STABLE] When the container was started, seconds since the epoch.",
        of_containers(snapshot, |one| seconds(one.started_at?)),
    );
    page.family(
        "container_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Swap that the container uses, bytes.",
        of_containers(snapshot, |one| swap(&one.cgroup)),
    );
    page.family(
        "container_swap_limit_bytes",
        Kind::Gauge,
        "[ALPHA] Swap that the container may use, bytes.",
        of_containers(snapshot, |one| {
            one.cgroup.memory.as_ref()?.swap_limit.map(count)
        }),
    );
}

fn node(snapshot: &Snapshot, page: &mut Page) {
    let machine = &snapshot.machine;
    let sample = |value| {
        vec![Sample {
            labels: Vec::new(),
            value,
            at: Some(machine.at),
        }]
    };
    page.family(
        "node_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Processor time of the node, seconds.",
        sample(machine.cpu.as_secs_f64()),
    );
    page.family(
        "node_memory_working_set_bytes",
        Kind::Gauge,
        "[STABLE] Memory of the node without unused page cache, bytes.",
        sample(count(machine.memory.working_set)),
    );
    page.family(
        "node_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Swap that the node uses, bytes.",
        sample(count(machine.memory.swap_used)),
    );
}

fn pods(snapshot: &Snapshot, page: &mut Page) {
    let of_pods = |value: &dyn Fn(&CgroupStats) -> Option<f64>| -> Vec<Sample> {
        let each = |sandbox: &SandboxStats| {
            Some(Sample {
                labels: vec![
                    ("namespace", sandbox.namespace.clone()),
                    ("pod", sandbox.name.clone()),
                ],
                value: value(&sandbox.cgroup)?,
                at: Some(sandbox.at),
            })
        };
        snapshot.sandboxes.iter().filter_map(each).collect()
    };
    page.family(
        "pod_cpu_usage_seconds_total",
        Kind::Counter,
        "[STABLE] Processor time of the pod, seconds.",
        of_pods(&cpu),
    );
    page.family(
        "pod_memory_working_set_bytes",
        Kind::Gauge,
        "[STABLE] Memory of the pod without unused page cache, bytes.",
        of_pods(&working_set),
    );
    page.family(
        "pod_swap_usage_bytes",
        Kind::Gauge,
        "[ALPHA] Swap that the pod uses, bytes.",
        of_pods(&swap),
    );
}

fn cpu(cgroup: &CgroupStats) -> Option<f64> {
    Some(cgroup.cpu.as_ref()?.usage.as_secs_f64())
}

fn working_set(cgroup: &CgroupStats) -> Option<f64> {
    Some(count(cgroup.memory.as_ref()?.working_set))
}

fn swap(cgroup: &CgroupStats) -> Option<f64> {
    cgroup.memory.as_ref()?.swap.map(count)
}

pub(super) fn seconds(at: SystemTime) -> Option<f64> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}
