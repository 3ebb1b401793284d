//! `/metrics/cadvisor`: the series of containers, pods and the machine that dashboards know.

use std::time::SystemTime;

use hanok_runtime::api::{
    CgroupStats, ContainerStats, CpuStats, DiskUsage, InterfaceStats, IoStats, MemoryStats,
    Pressure, SandboxStats, TrafficStats,
};

use super::Snapshot;
use super::exposition::{Kind, Page, Sample, count};
use super::resource::seconds;

/// Labels of a thing, with what its cgroup holds.
struct Subject<'a> {
    labels: Vec<(&'static str, String)>,
    at: SystemTime,
    cgroup: &'a CgroupStats,
    container: Option<&'a ContainerStats>,
}

/// The page. Names and labels are cAdvisor's; what the kernel does not count here is left out.
pub(crate) fn render(snapshot: &Snapshot) -> String {
    let mut page = Page::default();
    let subjects = subjects(snapshot);
    processors(&subjects, &mut page);
    memory(&subjects, &mut page);
    devices(&subjects, &mut page);
    stalls(&subjects, &mut page);
    life(&subjects, &mut page);
    for (direction, pick) in [("receive", received as Pick), ("transmit", sent as Pick)] {
        network(snapshot, direction, pick, &mut page);
    }
    machine(snapshot, &mut page);
    page.text()
}

/// Pods (with an empty container label), then their containers.
fn subjects(snapshot: &Snapshot) -> Vec<Subject<'_>> {
    let labels = |sandbox: &SandboxStats, container: Option<&ContainerStats>| {
        vec![
            (
                "container",
                container.map(|one| one.name.clone()).unwrap_or_default(),
            ),
            (
                "id",
                container.map_or(&sandbox.id.0, |one| &one.id.0).clone(),
            ),
            ("namespace", sandbox.namespace.clone()),
            ("pod", sandbox.name.clone()),
        ]
    };
    let mut subjects = Vec::new();
    for sandbox in &snapshot.sandboxes {
        subjects.push(Subject {
            labels: labels(sandbox, None),
            at: sandbox.at,
            cgroup: &sandbox.cgroup,
            container: None,
        });
        subjects.extend(sandbox.containers.iter().map(|one| Subject {
            labels: labels(sandbox, Some(one)),
            at: one.at,
            cgroup: &one.cgroup,
            container: Some(one),
        }));
    }
    subjects
}

/// One family over all subjects that have the figure.
fn samples(subjects: &[Subject<'_>], value: impl Fn(&Subject<'_>) -> Option<f64>) -> Vec<Sample> {
    let sample = |subject: &Subject<'_>| {
        Some(Sample {
            labels: subject.labels.clone(),
            value: value(subject)?,
            at: Some(subject.at),
        })
    };
    subjects.iter().filter_map(sample).collect()
}

fn processors(subjects: &[Subject<'_>], page: &mut Page) {
    type Value = fn(&CpuStats) -> f64;
    let families: [(&str, &str, Value); 6] = [
        (
            "container_cpu_usage_seconds_total",
            "Processor time, seconds.",
            |cpu| cpu.usage.as_secs_f64(),
        ),
        (
            "container_cpu_user_seconds_total",
            "Processor time in programs, seconds.",
            |cpu| cpu.user.as_secs_f64(),
        ),
        (
            "container_cpu_system_seconds_total",
            "Processor time in the kernel, seconds.",
            |cpu| cpu.system.as_secs_f64(),
        ),
        (
            "container_cpu_cfs_periods_total",
            "Quota periods in which somebody wanted to run.",
            |cpu| count(cpu.periods),
        ),
        (
            "container_cpu_cfs_throttled_periods_total",
            "Quota periods that were too short.",
            |cpu| count(cpu.throttled_periods),
        ),
        (
            "container_cpu_cfs_throttled_seconds_total",
            "Time spent waiting for the next period, seconds.",
            |cpu| cpu.throttled.as_secs_f64(),
        ),
    ];
    for (name, help, value) in families {
        let mut found = samples(subjects, |one| one.cgroup.cpu.as_ref().map(value));
        if name == "container_cpu_usage_seconds_total" {
            // Not by processor: the label says that it is their sum.
            found
                .iter_mut()
                .for_each(|one| one.labels.push(("cpu", "total".to_owned())));
        }
        page.family(name, Kind::Counter, help, found);
    }
}

fn memory(subjects: &[Subject<'_>], page: &mut Page) {
    type Value = fn(&MemoryStats) -> Option<u64>;
    let families: [(&str, Kind, &str, Value); 7] = [
        (
            "container_memory_usage_bytes",
            Kind::Gauge,
            "Memory that is charged, bytes.",
            |memory| Some(memory.usage),
        ),
        (
            "container_memory_working_set_bytes",
            Kind::Gauge,
            "Memory without unused page cache, bytes.",
            |memory| Some(memory.working_set),
        ),
        (
            "container_memory_rss",
            Kind::Gauge,
            "Anonymous memory, bytes.",
            |memory| Some(memory.rss),
        ),
        (
            "container_memory_cache",
            Kind::Gauge,
            "Page cache, bytes.",
            |memory| Some(memory.cache),
        ),
        (
            "container_memory_swap",
            Kind::Gauge,
            "Swap in use, bytes.",
            |memory| memory.swap,
        ),
        (
            "container_spec_memory_limit_bytes",
            Kind::Gauge,
            "Memory limit, bytes; 0 for none.",
            |memory| Some(memory.limit.unwrap_or(0)),
        ),
        (
            "container_oom_events_total",
            Kind::Counter,
            "Processes killed for want of memory.",
            |memory| Some(memory.oom_kills),
        ),
    ];
    for (name, kind, help, value) in families {
        let value = |one: &Subject<'_>| one.cgroup.memory.as_ref().and_then(value).map(count);
        page.family(name, kind, help, samples(subjects, value));
    }
    let mut faults = Vec::new();
    for (kind, value) in [
        (
            "pgfault",
            (|memory| memory.page_faults) as fn(&MemoryStats) -> u64,
        ),
        ("pgmajfault", |memory| memory.major_page_faults),
    ] {
        let mut found = samples(subjects, |one| {
            one.cgroup.memory.as_ref().map(value).map(count)
        });
        for sample in &mut found {
            sample.labels.push(("failure_type", kind.to_owned()));
            sample.labels.push(("scope", "hierarchy".to_owned()));
        }
        faults.append(&mut found);
    }
    page.family(
        "container_memory_failures_total",
        Kind::Counter,
        "Page faults.",
        faults,
    );
}

fn devices(subjects: &[Subject<'_>], page: &mut Page) {
    type Value = fn(&IoStats) -> u64;
    let families: [(&str, &str, Value); 4] = [
        (
            "container_fs_reads_bytes_total",
            "Bytes read from devices.",
            |io| io.read_bytes,
        ),
        (
            "container_fs_writes_bytes_total",
            "Bytes written to devices.",
            |io| io.write_bytes,
        ),
        ("container_fs_reads_total", "Reads from devices.", |io| {
            io.reads
        }),
        ("container_fs_writes_total", "Writes to devices.", |io| {
            io.writes
        }),
    ];
    for (name, help, value) in families {
        let value = |one: &Subject<'_>| one.cgroup.io.as_ref().map(value).map(count);
        page.family(name, Kind::Counter, help, samples(subjects, value));
    }
    let disk = |pick: fn(&DiskUsage) -> u64| {
        samples(subjects, |one| Some(count(pick(&one.container?.rootfs?))))
    };
    let usage = disk(|disk| disk.bytes);
    page.family(
        "container_fs_usage_bytes",
        Kind::Gauge,
        "Bytes in the writable layer.",
        usage,
    );
    let inodes = disk(|disk| disk.inodes);
    page.family(
        "container_fs_inodes_total",
        Kind::Gauge,
        "Files in the writable layer.",
        inodes,
    );
}

fn stalls(subjects: &[Subject<'_>], page: &mut Page) {
    type Source = fn(&CgroupStats) -> Option<Pressure>;
    let sources: [(&str, Source); 3] = [
        ("cpu", |cgroup| cgroup.cpu.as_ref()?.pressure),
        ("memory", |cgroup| cgroup.memory.as_ref()?.pressure),
        ("io", |cgroup| cgroup.io.as_ref()?.pressure),
    ];
    for (what, source) in sources {
        let waiting = |one: &Subject<'_>| Some(source(one.cgroup)?.some.total.as_secs_f64());
        let name = format!("container_pressure_{what}_waiting_seconds_total");
        let help = format!("Time in which some task waited for {what}, seconds.");
        page.family(&name, Kind::Counter, &help, samples(subjects, waiting));
        let stalled = |one: &Subject<'_>| Some(source(one.cgroup)?.full.total.as_secs_f64());
        let name = format!("container_pressure_{what}_stalled_seconds_total");
        let help = format!("Time in which all tasks waited for {what}, seconds.");
        page.family(&name, Kind::Counter, &help, samples(subjects, stalled));
    }
}

fn life(subjects: &[Subject<'_>], page: &mut Page) {
    let tasks = samples(subjects, |one| one.cgroup.pids.map(count));
    page.family("container_processes", Kind::Gauge, "Tasks.", tasks);
    let started = samples(subjects, |one| seconds(one.container?.started_at?));
    let help = "When it was started, seconds since the epoch.";
    page.family("container_start_time_seconds", Kind::Gauge, help, started);
    let seen = samples(subjects, |one| seconds(one.at));
    let help = "When it was looked at, seconds since the epoch.";
    page.family("container_last_seen", Kind::Gauge, help, seen);
}

type Pick = fn(&InterfaceStats) -> &TrafficStats;

fn received(interface: &InterfaceStats) -> &TrafficStats {
    &interface.rx
}

fn sent(interface: &InterfaceStats) -> &TrafficStats {
    &interface.tx
}

fn network(snapshot: &Snapshot, direction: &str, pick: Pick, page: &mut Page) {
    type Value = fn(&TrafficStats) -> u64;
    let families: [(&str, Value); 4] = [
        ("bytes", |traffic| traffic.bytes),
        ("packets", |traffic| traffic.packets),
        ("errors", |traffic| traffic.errors),
        ("packets_dropped", |traffic| traffic.dropped),
    ];
    for (what, value) in families {
        let mut found = Vec::new();
        for sandbox in &snapshot.sandboxes {
            found.extend(sandbox.interfaces.iter().map(|interface| Sample {
                labels: vec![
                    ("container", String::new()),
                    ("id", sandbox.id.0.clone()),
                    ("interface", interface.name.clone()),
                    ("namespace", sandbox.namespace.clone()),
                    ("pod", sandbox.name.clone()),
                ],
                value: count(value(pick(interface))),
                at: Some(sandbox.at),
            }));
        }
        let name = format!("container_network_{direction}_{what}_total");
        page.family(
            &name,
            Kind::Counter,
            "Counted by the pod's interface.",
            found,
        );
    }
}

fn machine(snapshot: &Snapshot, page: &mut Page) {
    let machine = &snapshot.machine;
    let sample = |value| {
        vec![Sample {
            labels: Vec::new(),
            value,
            at: None,
        }]
    };
    let cores = u64::try_from(machine.cores).unwrap_or(u64::MAX);
    page.family(
        "machine_cpu_cores",
        Kind::Gauge,
        "Processors.",
        sample(count(cores)),
    );
    let memory = sample(count(machine.memory.total));
    page.family(
        "machine_memory_bytes",
        Kind::Gauge,
        "Memory, bytes.",
        memory,
    );
    let swap = sample(count(machine.memory.swap_total));
    page.family("machine_swap_bytes", Kind::Gauge, "Swap, bytes.", swap);
}
