//! What a cgroup has used: the kernel's files → [`CgroupStats`].
//!
//! Parsers take text. A line or a file that is not there leaves its figure out; none of it is an error, for
//! kernels differ in what they count and a cgroup may go while it is read.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CgroupError, Cgroups, Hierarchy, Place};
use crate::api::{CgroupStats, CpuStats, IoStats, MemoryStats, Pressure, Stall};

/// Above this a v1 limit is none: the kernel writes the largest multiple of a page.
const V1_NO_LIMIT: u64 = i64::MAX as u64 - 0xffff;

impl Cgroups {
    /// What the cgroup and those below it have used.
    pub fn stats(&self, path: &str) -> Result<CgroupStats, CgroupError> {
        Ok(of(&self.places(path)?))
    }
}

/// What a cgroup has used, by its directories.
pub(crate) fn of(places: &[Place]) -> CgroupStats {
    let mut stats = CgroupStats::default();
    for place in places {
        match place.unified {
            true => read_v2(&place.directory, &mut stats),
            false => read_v1(&place.directory, &place.controllers, &mut stats),
        }
    }
    stats
}

impl Cgroups {
    /// The cgroup's directory in the hierarchy that counts memory.
    pub(crate) fn memory_directory(&self, path: &str) -> Option<PathBuf> {
        let counts = |one: &&Hierarchy| one.unified || one.has("memory");
        let hierarchy = self.hierarchies.iter().find(counts)?;
        Some(hierarchy.base.join(self.place(path).ok()?))
    }

    /// Processes of the cgroup that the OOM killer has killed so far.
    pub(crate) fn oom_kills(&self, path: &str) -> u64 {
        let Some(directory) = self.memory_directory(path) else {
            return 0;
        };
        let file = if self.is_v2() {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = fs::read_to_string(directory.join(file));
        text.map_or(0, |text| field(&text, "oom_kill"))
    }
}

fn read_v2(directory: &Path, stats: &mut CgroupStats) {
    let text = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let pressure = |file: &str| text(file).map(|text| pressure(&text));
    stats.cpu = text("cpu.stat").map(|stat| CpuStats {
        usage: micros(&stat, "usage_usec"),
        user: micros(&stat, "user_usec"),
        system: micros(&stat, "system_usec"),
        periods: field(&stat, "nr_periods"),
        throttled_periods: field(&stat, "nr_throttled"),
        throttled: micros(&stat, "throttled_usec"),
        pressure: pressure("cpu.pressure"),
    });
    let memory = number(text("memory.current")).zip(text("memory.stat"));
    stats.memory = memory.map(|(usage, stat)| MemoryStats {
        usage,
        working_set: usage.saturating_sub(field(&stat, "inactive_file")),
        rss: field(&stat, "anon"),
        cache: field(&stat, "file"),
        swap: number(text("memory.swap.current")),
        page_faults: field(&stat, "pgfault"),
        major_page_faults: field(&stat, "pgmajfault"),
        limit: number(text("memory.max")),
        swap_limit: number(text("memory.swap.max")),
        oom_kills: text("memory.events").map_or(0, |events| field(&events, "oom_kill")),
        pressure: pressure("memory.pressure"),
    });
    stats.io = text("io.stat").map(|stat| IoStats {
        pressure: pressure("io.pressure"),
        ..io(&stat)
    });
    stats.pids = number(text("pids.current"));
}

fn read_v1(directory: &Path, controllers: &[String], stats: &mut CgroupStats) {
    let has = |controller: &str| controllers.iter().any(|name| name == controller);
    let text = |file: &str| fs::read_to_string(directory.join(file)).ok();
    if has("cpuacct")
        && let Some(usage) = number(text("cpuacct.usage"))
    {
        let cpu = stats.cpu.get_or_insert_default();
        let nanos = |file: &str| Duration::from_nanos(number(text(file)).unwrap_or(0));
        cpu.usage = Duration::from_nanos(usage);
        cpu.user = nanos("cpuacct.usage_user");
        cpu.system = nanos("cpuacct.usage_sys");
    }
    if has("cpu")
        && let Some(stat) = text("cpu.stat")
    {
        let cpu = stats.cpu.get_or_insert_default();
        cpu.periods = field(&stat, "nr_periods");
        cpu.throttled_periods = field(&stat, "nr_throttled");
        cpu.throttled = Duration::from_nanos(field(&stat, "throttled_time"));
    }
    if has("memory") {
        let memory = number(text("memory.usage_in_bytes")).zip(text("memory.stat"));
        stats.memory = memory.map(|(usage, stat)| v1_memory(usage, &stat, text));
    }
    if has("pids") {
        stats.pids = number(text("pids.current"));
    }
    if has("blkio") {
        stats.io = v1_io(
            text("blkio.throttle.io_service_bytes_recursive"),
            text("blkio.throttle.io_serviced_recursive"),
        );
    }
}

/// Lines `major:minor Read 1`, of bytes and of operations.
fn v1_io(bytes: Option<String>, operations: Option<String>) -> Option<IoStats> {
    let (bytes, operations) = bytes.zip(operations)?;
    let sum = |text: &str, wanted: &str| {
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let value = (words.next()? == wanted).then(|| words.next())??;
            value.parse::<u64>().ok()
        });
        lines.fold(0, u64::saturating_add)
    };
    Some(IoStats {
        read_bytes: sum(&bytes, "Read"),
        write_bytes: sum(&bytes, "Write"),
        reads: sum(&operations, "Read"),
        writes: sum(&operations, "Write"),
        pressure: None,
    })
}

fn v1_memory(usage: u64, stat: &str, text: impl Fn(&str) -> Option<String>) -> MemoryStats {
    let limit = number(text("memory.limit_in_bytes")).filter(|limit| *limit < V1_NO_LIMIT);
    let both = number(text("memory.memsw.limit_in_bytes")).filter(|limit| *limit < V1_NO_LIMIT);
    MemoryStats {
        usage,
        working_set: usage.saturating_sub(field(stat, "total_inactive_file")),
        rss: field(stat, "total_rss"),
        cache: field(stat, "total_cache"),
        swap: found(stat, "total_swap"),
        page_faults: field(stat, "total_pgfault"),
        major_page_faults: field(stat, "total_pgmajfault"),
        limit,
        swap_limit: both
            .zip(limit)
            .map(|(both, limit)| both.saturating_sub(limit)),
        oom_kills: text("memory.oom_control").map_or(0, |control| field(&control, "oom_kill")),
        pressure: None,
    }
}

/// A file of one number; none for "max".
fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// The value of a line `name value`.
fn found(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

fn field(text: &str, name: &str) -> u64 {
    found(text, name).unwrap_or(0)
}

fn micros(text: &str, name: &str) -> Duration {
    Duration::from_micros(field(text, name))
}

/// io.stat: `major:minor rbytes=1 wbytes=2 rios=3 wios=4 ...`, a line for each device.
fn io(text: &str) -> IoStats {
    let mut total = IoStats::default();
    for pair in text.lines().flat_map(|line| line.split(' ').skip(1)) {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        let sum = match key {
            "rbytes" => &mut total.read_bytes,
            "wbytes" => &mut total.write_bytes,
            "rios" => &mut total.reads,
            "wios" => &mut total.writes,
            _ => continue,
        };
        *sum = sum.saturating_add(value.parse().unwrap_or(0));
    }
    total
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, then the same with `full`. Also of /proc/pressure.
pub fn pressure(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let stall = match words.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            read_stall(stall, key, value);
        }
    }
    pressure
}

fn read_stall(stall: &mut Stall, key: &str, value: &str) {
    let average = || {
        let average: f64 = value.parse().unwrap_or(0.0);
        if average.is_finite() { average } else { 0.0 }
    };
    match key {
        "avg10" => stall.avg10 = average(),
        "avg60" => stall.avg60 = average(),
        "avg300" => stall.avg300 = average(),
        "total" => stall.total = Duration::from_micros(value.parse().unwrap_or(0)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            fs::write(dir.path().join(file), text).unwrap();
        }
        dir
    }

    #[test]
    fn v2_files_are_read() {
        let psi = "some avg10=1.50 avg60=0.25 avg300=0.00 total=4000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let dir = directory(&[
            (
                "cpu.stat",
                "usage_usec 3000\nuser_usec 2000\nsystem_usec 1000\nnr_periods 5\nnr_throttled 2\nthrottled_usec 900\n",
            ),
            ("cpu.pressure", psi),
            ("memory.current", "8192\n"),
            (
                "memory.stat",
                "anon 4096\nfile 3000\ninactive_file 1000\npgfault 9\npgmajfault 1\n",
            ),
            ("memory.max", "max\n"),
            ("memory.swap.current", "0\n"),
            ("memory.events", "oom 2\noom_kill 1\noom_group_kill 0\n"),
            (
                "io.stat",
                "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n8:16 rbytes=10 wbytes=20 rios=30 wios=40\n",
            ),
            ("pids.current", "3\n"),
        ]);
        let mut stats = CgroupStats::default();
        read_v2(dir.path(), &mut stats);
        let cpu = stats.cpu.unwrap();
        assert_eq!((cpu.usage.as_micros(), cpu.throttled_periods), (3000, 2));
        let stall = cpu.pressure.unwrap().some;
        assert_eq!((stall.avg10, stall.total.as_micros()), (1.5, 4000));
        let memory = stats.memory.unwrap();
        assert_eq!(
            (memory.working_set, memory.rss, memory.limit),
            (7192, 4096, None)
        );
        assert_eq!(
            (memory.swap, memory.oom_kills, memory.pressure),
            (Some(0), 1, None)
        );
        let io = stats.io.unwrap();
        assert_eq!(
            (io.read_bytes, io.write_bytes, io.reads, io.writes),
            (11, 22, 33, 44)
        );
        assert_eq!(stats.pids, Some(3));
    }

    #[test]
    fn v1_files_count_the_cgroups_below() {
        let dir = directory(&[
            ("cpuacct.usage", "3000\n"),
            (
                "cpu.stat",
                "nr_periods 5\nnr_throttled 2\nthrottled_time 900\n",
            ),
            ("memory.usage_in_bytes", "8192\n"),
            (
                "memory.stat",
                "rss 1\ninactive_file 5\ntotal_rss 4096\ntotal_cache 2\ntotal_inactive_file 1000\n",
            ),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            ),
            (
                "blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 7\n8:0 Write 5\n8:0 Total 12\n8:16 Read 5\nTotal 17\n",
            ),
            (
                "blkio.throttle.io_serviced_recursive",
                "8:0 Read 2\n8:0 Write 1\n8:16 Read 1\nTotal 4\n",
            ),
        ]);
        let mut stats = CgroupStats::default();
        let controllers = ["cpu", "cpuacct", "memory", "pids", "blkio"].map(str::to_owned);
        read_v1(dir.path(), &controllers, &mut stats);
        assert_eq!(stats.cpu.unwrap().usage.as_nanos(), 3000);
        let memory = stats.memory.unwrap();
        assert_eq!(
            (memory.working_set, memory.rss, memory.limit),
            (7192, 4096, None)
        );
        assert_eq!((memory.swap, memory.oom_kills), (None, 4));
        assert_eq!(stats.pids, None);
        let io = stats.io.unwrap();
        assert_eq!((io.read_bytes, io.write_bytes), (12, 5));
        assert_eq!((io.reads, io.writes), (3, 1));
    }

    proptest! {
        #[test]
        fn nothing_that_a_file_holds_is_a_panic(text in "\\PC{0,200}") {
            let _ = (pressure(&text), io(&text), found(&text, "a"), number(Some(text.clone())));
        }
    }
}
