//! Resources of the specification → writes to the kernel's files. Only [`writes`] looks which of them there are.
//!
//! Follows config-linux.md, "Control groups", and for v2 the conversions that runc and crun make.

use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxMemory, LinuxResources, LinuxThrottleDevice};

use crate::cgroup::{Place, weight};

/// CFS period when none is given, microseconds: the kernel's own.
const PERIOD: u64 = 100_000;

/// A value for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) file: String,
    pub(super) value: String,
    /// The file may be absent, as one that only newer kernels have.
    pub(super) optional: bool,
}

/// Writes in order.
#[derive(Debug, Default)]
struct List(Vec<Write>);

impl List {
    fn add(&mut self, file: &str, value: impl ToString) {
        self.0.push(Write {
            file: file.to_owned(),
            value: value.to_string(),
            optional: false,
        });
    }

    fn add_optional(&mut self, file: &str, value: impl ToString) {
        self.0.push(Write {
            file: file.to_owned(),
            value: value.to_string(),
            optional: true,
        });
    }

    fn add_some(&mut self, file: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(file, value);
        }
    }
}

/// Controllers that these resources need; without one its limits would be left out in silence.
pub(super) fn needed_controllers(resources: &LinuxResources) -> Vec<&'static str> {
    let mut needed = other_controllers(resources);
    let cpu = resources.cpu().as_ref();
    let is_some = |value: Option<bool>| value == Some(true);
    let memory = resources.memory().as_ref();
    for (controller, wanted) in [
        (
            "cpu",
            is_some(cpu.map(|cpu| cpu.shares().is_some() || cpu.quota().is_some())),
        ),
        (
            "cpuset",
            is_some(cpu.map(|cpu| cpu.cpus().is_some() || cpu.mems().is_some())),
        ),
        (
            "memory",
            is_some(memory.map(|memory| memory.limit().is_some() || memory.swap().is_some())),
        ),
        (
            "pids",
            is_some(resources.pids().as_ref().map(|pids| pids.limit() > 0)),
        ),
        (
            "hugetlb",
            is_some(
                resources
                    .hugepage_limits()
                    .as_ref()
                    .map(|list| !list.is_empty()),
            ),
        ),
    ] {
        if wanted {
            needed.push(controller);
        }
    }
    needed
}

/// A controller that these resources need and that none of the places has.
pub(super) fn missing_controller(
    resources: &LinuxResources,
    places: &[Place],
) -> Option<&'static str> {
    let mut needed = needed_controllers(resources).into_iter();
    needed.find(|needed| {
        let has = |place: &Place| place.unified || place.controllers.iter().any(|c| c == needed);
        !places.iter().any(has)
    })
}

/// v1 controllers beside those of pods that these resources need.
pub(super) fn other_controllers(resources: &LinuxResources) -> Vec<&'static str> {
    let mut others = Vec::new();
    if resources.block_io().is_some() {
        others.push("blkio");
    }
    if let Some(network) = resources.network() {
        if network.class_id().is_some_and(|id| id != 0) {
            others.push("net_cls");
        }
        if network
            .priorities()
            .as_ref()
            .is_some_and(|list| !list.is_empty())
        {
            others.push("net_prio");
        }
    }
    if resources
        .rdma()
        .as_ref()
        .is_some_and(|list| !list.is_empty())
    {
        others.push("rdma");
    }
    others
}

/// What to write to a cgroup, without what may be absent and is.
pub(super) fn writes(place: &Place, resources: &LinuxResources) -> Vec<Write> {
    let mut writes = match place.unified {
        true => v2(resources),
        false => v1(resources, &place.controllers),
    };
    writes.retain(|write| !write.optional || place.directory.join(&write.file).exists());
    writes
}

/// What to write to a v1 cgroup with these controllers.
pub(super) fn v1(resources: &LinuxResources, controllers: &[String]) -> Vec<Write> {
    let mut list = List::default();
    for controller in controllers {
        match controller.as_str() {
            "cpu" => resources
                .cpu()
                .iter()
                .for_each(|cpu| v1_cpu(cpu, &mut list)),
            "cpuset" => resources
                .cpu()
                .iter()
                .for_each(|cpu| cpuset(cpu, &mut list)),
            "memory" => {
                let memory = resources.memory().iter();
                memory.for_each(|memory| v1_memory(memory, &mut list));
            }
            "blkio" => resources
                .block_io()
                .iter()
                .for_each(|io| v1_blkio(io, &mut list)),
            "pids" => pids(resources, &mut list),
            "hugetlb" => hugepages(resources, "limit_in_bytes", &mut list),
            "net_cls" | "net_prio" => v1_network(resources, controller, &mut list),
            "rdma" => rdma(resources, &mut list),
            _ => {}
        }
    }
    list.0
}

fn v1_cpu(cpu: &LinuxCpu, list: &mut List) {
    list.add_some("cpu.shares", cpu.shares().filter(|shares| *shares != 0));
    list.add_some(
        "cpu.rt_period_us",
        cpu.realtime_period().filter(|v| *v != 0),
    );
    list.add_some(
        "cpu.rt_runtime_us",
        cpu.realtime_runtime().filter(|v| *v != 0),
    );
    list.add_some(
        "cpu.cfs_period_us",
        cpu.period().filter(|period| *period != 0),
    );
    list.add_some("cpu.cfs_quota_us", cpu.quota().filter(|quota| *quota != 0));
    list.add_some("cpu.cfs_burst_us", cpu.burst());
    list.add_some("cpu.idle", cpu.idle().filter(|idle| *idle != 0));
}

fn cpuset(cpu: &LinuxCpu, list: &mut List) {
    let named = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    list.add_some("cpuset.cpus", named(cpu.cpus()));
    list.add_some("cpuset.mems", named(cpu.mems()));
}

/// The order is that of growing limits, in a fresh cgroup everything is unlimited: the sum after its part.
/// `kernel` is left out, as the kernel has it no more (it takes the value and does nothing, since 5.16).
fn v1_memory(memory: &LinuxMemory, list: &mut List) {
    list.add_some("memory.limit_in_bytes", memory.limit().filter(|v| *v != 0));
    list.add_some(
        "memory.memsw.limit_in_bytes",
        memory.swap().filter(|v| *v != 0),
    );
    list.add_some(
        "memory.soft_limit_in_bytes",
        memory.reservation().filter(|v| *v != 0),
    );
    list.add_some(
        "memory.kmem.tcp.limit_in_bytes",
        memory.kernel_tcp().filter(|v| *v != 0),
    );
    // All ones stood for "not set" in old documents.
    let swappiness = memory.swappiness().filter(|v| *v <= 200);
    list.add_some("memory.swappiness", swappiness);
    if memory.disable_oom_killer() == Some(true) {
        list.add("memory.oom_control", 1);
    }
}

fn v1_blkio(io: &LinuxBlockIo, list: &mut List) {
    list.add_some("blkio.weight", io.weight().filter(|v| *v != 0));
    list.add_some("blkio.leaf_weight", io.leaf_weight().filter(|v| *v != 0));
    for device in io.weight_device().iter().flatten() {
        let number = format!("{}:{}", device.major(), device.minor());
        let line = |value: u16| format!("{number} {value}");
        list.add_some("blkio.weight_device", device.weight().map(line));
        list.add_some("blkio.leaf_weight_device", device.leaf_weight().map(line));
    }
    let mut throttle = |file: &str, devices: &Option<Vec<LinuxThrottleDevice>>| {
        for device in devices.iter().flatten() {
            let line = format!("{}:{} {}", device.major(), device.minor(), device.rate());
            list.add(file, line);
        }
    };
    throttle(
        "blkio.throttle.read_bps_device",
        io.throttle_read_bps_device(),
    );
    throttle(
        "blkio.throttle.write_bps_device",
        io.throttle_write_bps_device(),
    );
    throttle(
        "blkio.throttle.read_iops_device",
        io.throttle_read_iops_device(),
    );
    throttle(
        "blkio.throttle.write_iops_device",
        io.throttle_write_iops_device(),
    );
}

fn v1_network(resources: &LinuxResources, controller: &str, list: &mut List) {
    let Some(network) = resources.network() else {
        return;
    };
    if controller == "net_cls" {
        list.add_some("net_cls.classid", network.class_id().filter(|id| *id != 0));
    } else {
        for one in network.priorities().iter().flatten() {
            list.add(
                "net_prio.ifpriomap",
                format!("{} {}", one.name(), one.priority()),
            );
        }
    }
}

fn pids(resources: &LinuxResources, list: &mut List) {
    match resources.pids().as_ref().map(|pids| pids.limit()) {
        None | Some(0) => {}
        Some(limit) if limit < 0 => list.add("pids.max", "max"),
        Some(limit) => list.add("pids.max", limit),
    }
}

fn hugepages(resources: &LinuxResources, suffix: &str, list: &mut List) {
    for limit in resources.hugepage_limits().iter().flatten() {
        let (size, limit) = (limit.page_size(), limit.limit());
        list.add(&format!("hugetlb.{size}.{suffix}"), limit);
        // What is mapped counts there: beyond it mmap fails, where the other limit has SIGBUS at the first touch. Since
        // Linux 5.7.
        list.add_optional(&format!("hugetlb.{size}.rsvd.{suffix}"), limit);
    }
}

fn rdma(resources: &LinuxResources, list: &mut List) {
    for (device, limit) in resources.rdma().iter().flatten() {
        let mut line = device.clone();
        if let Some(handles) = limit.hca_handles() {
            line += &format!(" hca_handle={handles}");
        }
        if let Some(objects) = limit.hca_objects() {
            line += &format!(" hca_object={objects}");
        }
        list.add("rdma.max", line);
    }
}

/// What to write to a v2 cgroup.
pub(super) fn v2(resources: &LinuxResources) -> Vec<Write> {
    let mut list = List::default();
    resources
        .cpu()
        .iter()
        .for_each(|cpu| v2_cpu(cpu, &mut list));
    let memory = resources.memory().iter();
    memory.for_each(|memory| v2_memory(memory, &mut list));
    resources
        .block_io()
        .iter()
        .for_each(|io| v2_io(io, &mut list));
    pids(resources, &mut list);
    hugepages(resources, "max", &mut list);
    rdma(resources, &mut list);
    for (file, value) in resources.unified().iter().flatten() {
        list.add(file, value);
    }
    list.0
}

fn v2_cpu(cpu: &LinuxCpu, list: &mut List) {
    list.add_some("cpu.weight", cpu.shares().filter(|v| *v != 0).map(weight));
    let quota = cpu.quota().filter(|quota| *quota != 0);
    if quota.is_some() || cpu.period().is_some_and(|period| period != 0) {
        let period = cpu.period().filter(|period| *period != 0).unwrap_or(PERIOD);
        match quota {
            Some(quota) if quota > 0 => list.add("cpu.max", format!("{quota} {period}")),
            _ => list.add("cpu.max", format!("max {period}")),
        }
    }
    list.add_some("cpu.max.burst", cpu.burst());
    list.add_some("cpu.idle", cpu.idle().filter(|idle| *idle != 0));
    cpuset(cpu, list);
}

fn v2_memory(memory: &LinuxMemory, list: &mut List) {
    let maximum = |value: i64| match value < 0 {
        true => "max".to_owned(),
        false => value.to_string(),
    };
    let limit = memory.limit().filter(|v| *v != 0);
    list.add_some("memory.max", limit.map(maximum));
    // v2 counts swap alone, the given limit is the sum.
    let swap = memory.swap().filter(|v| *v != 0);
    let alone = swap.map(|swap| match swap < 0 {
        true => -1,
        false => swap.saturating_sub(limit.unwrap_or(0).max(0)).max(0),
    });
    list.add_some("memory.swap.max", alone.map(maximum));
    list.add_some(
        "memory.low",
        memory.reservation().filter(|v| *v != 0).map(maximum),
    );
}

fn v2_io(io: &LinuxBlockIo, list: &mut List) {
    // 10..=1000 of v1 onto 1..=10000.
    let weight = |weight: u16| 1 + (u32::from(weight.max(10)) - 10) * 9999 / 990;
    list.add_some("io.bfq.weight", io.weight().filter(|v| *v != 0).map(weight));
    let mut throttle = |key: &str, devices: &Option<Vec<LinuxThrottleDevice>>| {
        for device in devices.iter().flatten() {
            let line = format!(
                "{}:{} {key}={}",
                device.major(),
                device.minor(),
                device.rate()
            );
            list.add("io.max", line);
        }
    };
    throttle("rbps", io.throttle_read_bps_device());
    throttle("wbps", io.throttle_write_bps_device());
    throttle("riops", io.throttle_read_iops_device());
    throttle("wiops", io.throttle_write_iops_device());
}

#[cfg(test)]
mod tests;
