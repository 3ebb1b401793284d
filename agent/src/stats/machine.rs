//! What the whole machine uses, and this process: /proc (proc(5)). Readers do the I/O; parsers take text.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use hanok_runtime::api::{InterfaceStats, Pressure};
use hanok_runtime::cgroup::pressure;
use hanok_runtime::stats::interfaces;

/// Ticks a second in /proc, the same on every machine that we run on (USER_HZ).
const TICKS: u64 = 100;

/// The machine at one moment.
#[derive(Debug, Clone)]
pub(super) struct MachineStats {
    pub(super) at: SystemTime,
    pub(super) booted_at: SystemTime,
    pub(super) cores: usize,
    /// Processor time that was not idle.
    pub(super) cpu: Duration,
    pub(super) memory: MemoryStats,
    pub(super) cpu_pressure: Option<Pressure>,
    pub(super) memory_pressure: Option<Pressure>,
    pub(super) io_pressure: Option<Pressure>,
    /// Without the loopback.
    pub(super) interfaces: Vec<InterfaceStats>,
    /// The one with the default route.
    pub(super) default_interface: Option<String>,
    pub(super) tasks: u64,
    pub(super) max_tasks: u64,
    pub(super) agent: AgentStats,
}

impl Default for MachineStats {
    fn default() -> Self {
        Self {
            at: SystemTime::UNIX_EPOCH,
            booted_at: SystemTime::UNIX_EPOCH,
            cores: 0,
            cpu: Duration::ZERO,
            memory: MemoryStats::default(),
            cpu_pressure: None,
            memory_pressure: None,
            io_pressure: None,
            interfaces: Vec::new(),
            default_interface: None,
            tasks: 0,
            max_tasks: 0,
            agent: AgentStats::default(),
        }
    }
}

/// The machine's memory, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryStats {
    pub(super) total: u64,
    pub(super) usage: u64,
    pub(super) working_set: u64,
    pub(super) rss: u64,
    pub(super) swap_total: u64,
    pub(super) swap_used: u64,
    pub(super) page_faults: u64,
    pub(super) major_page_faults: u64,
}

/// This process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AgentStats {
    pub(super) cpu: Duration,
    pub(super) rss: u64,
    pub(super) page_faults: u64,
    pub(super) major_page_faults: u64,
    /// After the machine.
    pub(super) started: Duration,
}

/// A filesystem, bytes and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Filesystem {
    pub(super) capacity: u64,
    /// To those who are not root.
    pub(super) available: u64,
    pub(super) used: u64,
    pub(super) inodes: u64,
    pub(super) inodes_free: u64,
}

/// Looks at the machine. What cannot be read is zero or none.
pub(super) fn look() -> MachineStats {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let stat = text("/proc/stat");
    let stalls = |of: &str| fs::read_to_string(format!("/proc/pressure/{of}")).ok();
    MachineStats {
        at: SystemTime::now(),
        booted_at: SystemTime::UNIX_EPOCH + Duration::from_secs(word(&stat, "btime", 0)),
        cores: std::thread::available_parallelism().map_or(1, Into::into),
        cpu: busy(&stat),
        memory: memory(&text("/proc/meminfo"), &text("/proc/vmstat")),
        cpu_pressure: stalls("cpu").map(|text| pressure(&text)),
        memory_pressure: stalls("memory").map(|text| pressure(&text)),
        io_pressure: stalls("io").map(|text| pressure(&text)),
        interfaces: interfaces::parse(&text("/proc/self/net/dev")),
        default_interface: default_interface(&text("/proc/self/net/route")),
        tasks: tasks(&text("/proc/loadavg")),
        max_tasks: text("/proc/sys/kernel/pid_max").trim().parse().unwrap_or(0),
        agent: agent(&text("/proc/self/stat"), &text("/proc/self/status")),
    }
}

/// The filesystem at the path, or at the closest directory above that exists.
pub(super) fn filesystem(path: &Path) -> Option<Filesystem> {
    let found = path
        .ancestors()
        .find_map(|path| rustix::fs::statvfs(path).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(Filesystem {
        capacity: bytes(found.f_blocks),
        available: bytes(found.f_bavail),
        used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    })
}

/// The n-th number behind a name at the beginning of a line.
fn word(text: &str, name: &str, n: usize) -> u64 {
    let line = text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with([' ', ':', '\t']).then_some(rest)
    });
    let words = line.unwrap_or_default();
    let mut words = words
        .split([' ', ':', '\t'])
        .filter(|word| !word.is_empty());
    words.nth(n).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The first line of /proc/stat without idle, iowait and what other machines took; guests are in user.
fn busy(stat: &str) -> Duration {
    const USER_NICE_SYSTEM_IRQ_SOFTIRQ: [usize; 5] = [0, 1, 2, 5, 6];
    let ticks = USER_NICE_SYSTEM_IRQ_SOFTIRQ.map(|n| word(stat, "cpu", n));
    from_ticks(
        ticks
            .iter()
            .fold(0, |sum, ticks| sum.saturating_add(*ticks)),
    )
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS))
}

fn memory(meminfo: &str, vmstat: &str) -> MemoryStats {
    let bytes = |name| word(meminfo, name, 0).saturating_mul(1024);
    let total = bytes("MemTotal");
    let usage = total.saturating_sub(bytes("MemFree"));
    let swap_total = bytes("SwapTotal");
    MemoryStats {
        total,
        usage,
        working_set: usage.saturating_sub(bytes("Inactive(file)")),
        rss: bytes("AnonPages"),
        swap_total,
        swap_used: swap_total.saturating_sub(bytes("SwapFree")),
        page_faults: word(vmstat, "pgfault", 0),
        major_page_faults: word(vmstat, "pgmajfault", 0),
    }
}

/// The interface of the route to 0.0.0.0/0 in /proc/net/route: name, destination, gateway, ..., mask.
fn default_interface(routes: &str) -> Option<String> {
    routes.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, destination, mask) = (words.first()?, words.get(1)?, words.get(7)?);
        (*destination == "00000000" && *mask == "00000000").then(|| (*name).to_owned())
    })
}

/// `0.00 0.00 0.00 running/all last`.
fn tasks(loadavg: &str) -> u64 {
    let all = loadavg
        .split(' ')
        .nth(3)
        .and_then(|pair| pair.split_once('/'));
    all.and_then(|(_, all)| all.parse().ok()).unwrap_or(0)
}

/// /proc/self/stat behind the name in parentheses, which may hold anything.
fn agent(stat: &str, status: &str) -> AgentStats {
    let fields: Vec<u64> = stat
        .rsplit_once(") ")
        .map_or("", |(_, rest)| rest)
        .split(' ')
        .map(|field| field.trim().parse().unwrap_or(0))
        .collect();
    // proc(5) counts from 1 and from before the name.
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    AgentStats {
        cpu: from_ticks(field(14).saturating_add(field(15))),
        rss: word(status, "VmRSS", 0).saturating_mul(1024),
        page_faults: field(10),
        major_page_faults: field(12),
        started: from_ticks(field(22)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_used() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 9 0\ncpu0 1 1 1 1 1 1 1\nbtime 1700000000\n";
        assert_eq!(busy(stat), Duration::from_millis(1630));
        assert_eq!(word(stat, "btime", 0), 1_700_000_000);
        assert_eq!(busy(""), Duration::ZERO);
    }

    #[test]
    fn working_set_leaves_out_the_cache_that_nobody_uses() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive: 300 kB\nInactive(file): 200 kB\n\
                       AnonPages: 50 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n";
        let memory = memory(meminfo, "pgfault 12\npgmajfault 3\n");
        let kib = |bytes: u64| bytes / 1024;
        assert_eq!((kib(memory.usage), kib(memory.working_set)), (600, 400));
        assert_eq!((kib(memory.rss), kib(memory.swap_used)), (50, 3));
        assert_eq!((memory.page_faults, memory.major_page_faults), (12, 3));
    }

    #[test]
    fn routes_tasks_and_the_agent_are_read() {
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                      br0\t0000400A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                      eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(default_interface(routes), Some("eth0".into()));
        assert_eq!(default_interface("x\n\n"), None);
        assert_eq!((tasks("0.1 0.2 0.3 2/345 999"), tasks("")), (345, 0));
        let stat = "7 (a ) b) S 1 1 1 0 -1 4194304 55 0 6 0 150 50 0 0 20 0 9 0 12345 1 1";
        let agent = agent(stat, "VmRSS:\t  2048 kB\n");
        assert_eq!((agent.cpu, agent.rss), (Duration::from_secs(2), 2 << 20));
        assert_eq!((agent.page_faults, agent.major_page_faults), (55, 6));
        assert_eq!(agent.started, Duration::from_millis(123_450));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let machine = look();
        assert!(machine.cpu > Duration::ZERO && machine.memory.working_set > 0);
        assert!(machine.agent.rss > 0 && machine.tasks > 0 && machine.max_tasks > 0);
        let root = filesystem(Path::new("/nowhere/below/root")).unwrap();
        assert!(root.capacity >= root.used && root.used > 0);
    }
}
