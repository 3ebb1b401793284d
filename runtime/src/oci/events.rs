//! `events`: what a container uses, in the form that runc's callers read, and that it ran out of memory.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Map, Value, json};

use super::record::{Record, Status};
use super::{OciError, Result, Runtime};
use crate::api::IoStats;
use crate::cgroup::{Place, stats};

impl Runtime {
    /// One event of what the container uses now.
    pub fn usage(&self, id: &str) -> Result<Value> {
        let record = self.state(id)?;
        record.require("measure", &Status::ALIVE)?;
        Ok(event("stats", &record, usage(&record.places())))
    }

    /// Tells of the container at every interval until its process has ended or nobody listens any more. What the kernel
    /// has killed in it for want of memory since is an event of its own.
    pub fn watch(
        &self,
        id: &str,
        interval: Duration,
        mut tell: impl FnMut(&Value) -> bool,
    ) -> Result<()> {
        let record = self.state(id)?;
        record.require("watch", &Status::ALIVE)?;
        let pid = Pid::from_raw(record.pid);
        let open = pid
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let pidfd = open.map_err(|error| OciError::io("watch", &record.dir)(error.into()))?;
        let places = record.places();
        let timeout = Timespec::try_from(interval)
            .map_err(|_| OciError::Option("the interval is too long".into()))?;
        let mut killed = kills(&places);
        loop {
            let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
            let ready = match poll(&mut ended, Some(&timeout)) {
                Err(Errno::INTR) => continue,
                done => done.map_err(|error| OciError::io("watch", &record.dir)(error.into()))?,
            };
            let now = kills(&places);
            if now > killed {
                killed = now;
                tell(&event("oom", &record, Value::Null));
            }
            if ready > 0 || !tell(&event("stats", &record, usage(&places))) {
                return Ok(());
            }
        }
    }
}

fn kills(places: &[Place]) -> u64 {
    stats::of(places)
        .memory
        .map_or(0, |memory| memory.oom_kills)
}

fn event(kind: &str, record: &Record, data: Value) -> Value {
    let mut event = json!({ "type": kind, "id": record.id });
    if !data.is_null() {
        event["data"] = data;
    }
    event
}

/// The first of the files that one of the places has, as a number.
fn number(places: &[Place], files: &[&str]) -> u64 {
    let pairs = places
        .iter()
        .flat_map(|place| files.iter().map(move |file| (place, file)));
    pairs
        .filter_map(|(place, file)| place.number(file))
        .next()
        .unwrap_or(0)
}

fn usage(places: &[Place]) -> Value {
    let used = stats::of(places);
    let cpu = used.cpu.unwrap_or_default();
    let memory = used.memory.unwrap_or_default();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let swap = memory.swap.unwrap_or(0);
    json!({
        "cpu": {
            "usage": { "total": nanos(cpu.usage), "kernel": nanos(cpu.system), "user": nanos(cpu.user) },
            "throttling": {
                "periods": cpu.periods,
                "throttledPeriods": cpu.throttled_periods,
                "throttledTime": nanos(cpu.throttled),
            },
        },
        "memory": {
            "cache": memory.cache,
            "usage": {
                "limit": memory.limit.unwrap_or(u64::MAX),
                "usage": memory.usage,
                "max": number(places, &["memory.peak", "memory.max_usage_in_bytes"]),
                "failcnt": number(places, &["memory.failcnt"]),
            },
            "swap": {
                "limit": memory.swap_limit.unwrap_or(u64::MAX),
                "usage": swap,
                "failcnt": number(places, &["memory.memsw.failcnt"]),
            },
            "raw": raw(places),
        },
        "pids": { "current": used.pids.unwrap_or(0), "limit": number(places, &["pids.max"]) },
        "blkio": blkio(&used.io.unwrap_or_default()),
        "hugetlb": hugetlb(places),
    })
}

/// memory.stat as it is.
fn raw(places: &[Place]) -> Value {
    let text = places
        .iter()
        .find_map(|place| place.read("memory.stat"))
        .unwrap_or_default();
    let pairs = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), Value::from(value.parse::<u64>().ok()?)))
    });
    Value::Object(pairs.collect::<Map<_, _>>())
}

/// All devices together, as if they were one.
fn blkio(io: &IoStats) -> Value {
    let entry = |op: &str, value: u64| json!({ "major": 0, "minor": 0, "op": op, "value": value });
    json!({
        "ioServiceBytesRecursive": [entry("Read", io.read_bytes), entry("Write", io.write_bytes)],
        "ioServicedRecursive": [entry("Read", io.reads), entry("Write", io.writes)],
    })
}

/// By page size.
fn hugetlb(places: &[Place]) -> Value {
    let mut sizes = Map::new();
    for place in places {
        for name in place.files() {
            let size = name
                .strip_prefix("hugetlb.")
                .and_then(|rest| rest.split_once('.'));
            let (size, current) = match size {
                Some((size, current @ ("current" | "usage_in_bytes"))) => (size, current),
                _ => continue,
            };
            let of = |file: &str| place.number(&format!("hugetlb.{size}.{file}")).unwrap_or(0);
            let (max, failed) = (of("max_usage_in_bytes"), of("failcnt"));
            let entry = json!({ "usage": of(current), "max": max, "failcnt": failed });
            sizes.insert(size.to_owned(), entry);
        }
    }
    Value::Object(sizes)
}
