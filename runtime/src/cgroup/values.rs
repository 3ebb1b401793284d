//! Limits → writes to the kernel's files. Pure; [`super::apply`] carries them out.

use crate::api::Resources;

/// CFS period when none is given, microseconds: the kernel's own.
const PERIOD: u64 = 100_000;

/// The file of the memory limit on v1.
pub(super) const V1_MEMORY_LIMIT: &str = "memory.limit_in_bytes";

/// The file of the memory limit on v2.
pub(super) const V2_MEMORY_LIMIT: &str = "memory.max";

/// A value for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) file: String,
    pub(super) value: String,
    /// The file may be absent, as swap accounting is on many machines.
    pub(super) optional: bool,
    /// Tried again after the next one when the kernel finds it invalid: v1 checks memory and memory+swap against
    /// each other at every write, and a quota with its period against the parent's, so that one order serves
    /// for growing and the other for shrinking.
    pub(super) retry: bool,
}

/// What to write, in order, to a cgroup with these v1 controllers, or with all of v2's.
pub(super) fn writes(resources: &Resources, unified: bool, controllers: &[String]) -> Vec<Write> {
    let mut list = List::default();
    if unified {
        v2(resources, &mut list);
        return list.0;
    }
    for controller in controllers {
        match controller.as_str() {
            "memory" => v1_memory(resources, &mut list),
            "cpu" => v1_cpu(resources, &mut list),
            "pids" => pids(resources, &mut list),
            "cpuset" => cpuset(resources, &mut list),
            "hugetlb" => hugepages(resources, "limit_in_bytes", &mut list),
            _ => {}
        }
    }
    list.0
}

#[derive(Default)]
struct List(Vec<Write>);

impl List {
    fn add(&mut self, file: &str, value: impl ToString) {
        let value = value.to_string();
        self.0.push(Write {
            file: file.to_owned(),
            value,
            optional: false,
            retry: false,
        });
    }

    fn add_optional(&mut self, file: &str, value: impl ToString) {
        self.add(file, value);
        if let Some(last) = self.0.last_mut() {
            last.optional = true;
        }
    }

    /// As [`List::add`]; what is added next may have to be written first.
    fn add_retried(&mut self, file: &str, value: impl ToString) {
        self.add(file, value);
        if let Some(last) = self.0.last_mut() {
            last.retry = true;
        }
    }
}

fn v1_cpu(resources: &Resources, list: &mut List) {
    if resources.cpu_shares != 0 {
        list.add("cpu.shares", resources.cpu_shares.clamp(2, 262_144));
    }
    if resources.cpu_period != 0 && resources.cpu_quota != 0 {
        list.add_retried("cpu.cfs_period_us", resources.cpu_period);
    } else if resources.cpu_period != 0 {
        list.add("cpu.cfs_period_us", resources.cpu_period);
    }
    if resources.cpu_quota != 0 {
        list.add("cpu.cfs_quota_us", resources.cpu_quota.max(-1));
    }
}

fn v1_memory(resources: &Resources, list: &mut List) {
    let (limit, swap) = (resources.memory_limit, resources.memory_swap_limit);
    if limit != 0 && swap != 0 {
        list.add_retried(V1_MEMORY_LIMIT, limit.max(-1));
    } else if limit != 0 {
        list.add(V1_MEMORY_LIMIT, limit.max(-1));
    }
    if swap != 0 {
        list.add_optional("memory.memsw.limit_in_bytes", swap.max(-1));
    }
}

fn pids(resources: &Resources, list: &mut List) {
    match resources.pids_limit {
        0 => {}
        limit if limit < 0 => list.add("pids.max", "max"),
        limit => list.add("pids.max", limit),
    }
}

fn cpuset(resources: &Resources, list: &mut List) {
    if !resources.cpuset_cpus.is_empty() {
        list.add("cpuset.cpus", &resources.cpuset_cpus);
    }
}

fn hugepages(resources: &Resources, suffix: &str, list: &mut List) {
    for (size, limit) in &resources.hugepages {
        if size.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            // A node may lack a page size that a cluster knows.
            list.add_optional(&format!("hugetlb.{size}.{suffix}"), limit);
            // What is mapped counts there: beyond it mmap fails, where the other limit has SIGBUS at the first touch.
            list.add_optional(&format!("hugetlb.{size}.rsvd.{suffix}"), limit);
        }
    }
}

fn v2(resources: &Resources, list: &mut List) {
    let (limit, swap) = (resources.memory_limit, resources.memory_swap_limit);
    if limit != 0 {
        list.add(V2_MEMORY_LIMIT, maximum(limit));
    }
    if swap != 0 {
        // v2 counts swap alone, the given limit is the sum.
        let alone = if swap < 0 {
            -1
        } else {
            swap.saturating_sub(limit.max(0)).max(0)
        };
        list.add_optional("memory.swap.max", maximum(alone));
    }
    if resources.cpu_shares != 0 {
        list.add("cpu.weight", weight(resources.cpu_shares));
    }
    if resources.cpu_quota != 0 || resources.cpu_period != 0 {
        let period = if resources.cpu_period == 0 {
            PERIOD
        } else {
            resources.cpu_period
        };
        match resources.cpu_quota {
            quota if quota > 0 => list.add("cpu.max", format!("{quota} {period}")),
            _ => list.add("cpu.max", format!("max {period}")),
        }
    }
    pids(resources, list);
    cpuset(resources, list);
    hugepages(resources, "max", list);
    for (file, value) in &resources.unified {
        // The key is a file of a controller, not a path and not the core's own file.
        let plain = file
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if plain && file.contains('.') && !file.starts_with("cgroup.") && !file.starts_with('.') {
            match file.as_str() {
                // Missing where there is no swap accounting.
                "memory.swap.max" => list.add_optional(file, value),
                _ => list.add(file, value),
            }
        }
    }
}

fn maximum(value: i64) -> String {
    if value < 0 {
        "max".to_owned()
    } else {
        value.to_string()
    }
}

/// cpu.shares → cpu.weight: the curve of the OCI runtimes (2 → 1, 1024 → 100, 262144 → 10000), not the old
/// straight line, which gave a container of one CPU a weight of 39.
pub(crate) fn weight(shares: u64) -> u64 {
    match shares {
        0..=2 => return 1,
        262_144.. => return 10_000,
        _ => {}
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 262143")]
    let l = (shares as f64).log2();
    let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1..=10000"
    )]
    let weight = 10f64.powf(exponent).ceil() as u64;
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(resources: &Resources, unified: bool, controllers: &[&str]) -> Vec<String> {
        let controllers: Vec<String> = controllers.iter().map(ToString::to_string).collect();
        let writes = writes(resources, unified, &controllers);
        writes
            .iter()
            .map(|write| format!("{}={}", write.file, write.value))
            .collect()
    }

    #[test]
    fn weight_follows_the_runtimes_curve() {
        for (shares, expected) in [
            (0, 1),
            (2, 1),
            (102, 17),
            (512, 59),
            (1024, 100),
            (2048, 174),
            (262_144, 10_000),
            (u64::MAX, 10_000),
        ] {
            assert_eq!(weight(shares), expected, "{shares}");
        }
    }

    #[test]
    fn nothing_asked_writes_nothing() {
        let all = [
            "cpu", "memory", "pids", "cpuset", "hugetlb", "devices", "cpuacct",
        ];
        assert!(plan(&Resources::default(), false, &all).is_empty());
        assert!(plan(&Resources::default(), true, &[]).is_empty());
    }

    fn limits() -> Resources {
        Resources {
            cpu_shares: 512,
            cpu_quota: 50_000,
            memory_limit: 1 << 20,
            memory_swap_limit: 3 << 20,
            pids_limit: 100,
            hugepages: [("2MB".to_owned(), 4)].into(),
            cpuset_cpus: "0-1".to_owned(),
            ..Resources::default()
        }
    }

    #[test]
    fn limits_on_v1() {
        assert_eq!(
            plan(&limits(), false, &["cpu", "cpuacct"]),
            ["cpu.shares=512", "cpu.cfs_quota_us=50000"]
        );
        assert_eq!(
            plan(&limits(), false, &["memory"]),
            [
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=3145728"
            ]
        );
        assert_eq!(plan(&limits(), false, &["pids"]), ["pids.max=100"]);
        assert_eq!(plan(&limits(), false, &["cpuset"]), ["cpuset.cpus=0-1"]);
        assert_eq!(
            plan(&limits(), false, &["hugetlb"]),
            [
                "hugetlb.2MB.limit_in_bytes=4",
                "hugetlb.2MB.rsvd.limit_in_bytes=4"
            ]
        );
    }

    #[test]
    fn limits_on_v2() {
        assert_eq!(
            plan(&limits(), true, &[]),
            [
                "memory.max=1048576",
                "memory.swap.max=2097152",
                "cpu.weight=59",
                "cpu.max=50000 100000",
                "pids.max=100",
                "cpuset.cpus=0-1",
                "hugetlb.2MB.max=4",
                "hugetlb.2MB.rsvd.max=4",
            ]
        );
    }

    #[test]
    fn unlimited_is_spelled_as_each_version_does() {
        let none = Resources {
            cpu_quota: -1,
            memory_limit: -1,
            pids_limit: -1,
            memory_swap_limit: -1,
            ..Resources::default()
        };
        assert_eq!(
            plan(&none, true, &[]),
            [
                "memory.max=max",
                "memory.swap.max=max",
                "cpu.max=max 100000",
                "pids.max=max"
            ]
        );
        assert_eq!(
            plan(&none, false, &["cpu", "pids"]),
            ["cpu.cfs_quota_us=-1", "pids.max=max"]
        );
    }

    #[test]
    fn unified_keys_are_files_of_controllers_only() {
        let mut resources = Resources::default();
        for key in [
            "memory.oom.group",
            "cgroup.procs",
            "../memory.max",
            "memory",
            "a/b.c",
            ".x",
        ] {
            resources.unified.insert(key.to_owned(), "1".to_owned());
        }
        assert_eq!(plan(&resources, true, &[]), ["memory.oom.group=1"]);
        assert!(plan(&resources, false, &["memory"]).is_empty());
    }
}
