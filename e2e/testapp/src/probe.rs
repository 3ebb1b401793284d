//! What a container must not be able to do: each line says what was tried and whether it was refused.
//!
//! `refused NAME` is what a story wants to read; `ALLOWED NAME` is a hole in the wall.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::say;

/// Capabilities of an ordinary container: the bits that may be set.
const DEFAULT_CAPABILITIES: u64 = 0xa804_25fb;

/// Files that must read as empty, and directories that must be empty.
const MASKED: [&str; 8] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/acpi",
    "/proc/scsi",
    "/sys/firmware",
];

/// Tries everything; 0 when all of it was refused.
pub(crate) fn probe() -> u8 {
    let mut allowed = 0;
    let mut tell = |name: &str, refused: bool| {
        say(&format!(
            "{} {name}",
            if refused { "refused" } else { "ALLOWED" }
        ));
        allowed += u32::from(!refused);
    };
    tell(
        "more-capabilities",
        capabilities() & !DEFAULT_CAPABILITIES == 0,
    );
    tell(
        "no-seccomp",
        status_field("Seccomp:").as_deref() == Some("2"),
    );
    tell(
        "mount",
        none(mount(
            Some("x"),
            "/tmp",
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )),
    );
    tell(
        "new-user-namespace",
        none(unshare(CloneFlags::CLONE_NEWUSER)),
    );
    tell(
        "write-sysctl",
        File::options()
            .write(true)
            .open("/proc/sys/kernel/hostname")
            .is_err(),
    );
    tell(
        "write-sysrq",
        File::options()
            .write(true)
            .open("/proc/sysrq-trigger")
            .is_err(),
    );
    tell("write-sys", fs::create_dir("/sys/fs/cgroup/x").is_err());
    for path in MASKED {
        tell(&format!("read-{path}"), is_masked(Path::new(path)));
    }
    tell("see-other-processes", other_processes() == 0);
    tell("block-devices", !has_block_device());
    tell(
        "host-directories",
        !Path::new("/proc/1/root/etc/debian_version").exists(),
    );
    u8::try_from(allowed).unwrap_or(u8::MAX)
}

fn none(result: Result<(), Errno>) -> bool {
    result.is_err()
}

fn status_field(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line[name.len()..].trim().to_owned())
}

fn capabilities() -> u64 {
    let bits = status_field("CapBnd:").unwrap_or_default();
    u64::from_str_radix(&bits, 16).unwrap_or(u64::MAX)
}

fn is_masked(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => fs::read_dir(path).is_ok_and(|mut d| d.next().is_none()),
        Ok(_) => fs::read(path).is_ok_and(|bytes| bytes.is_empty()),
        Err(_) => true,
    }
}

/// Processes beside this one: none in a PID namespace of its own.
fn other_processes() -> usize {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).count()
}

fn has_block_device() -> bool {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_type().ok())
        .any(|t| t.is_block_device())
}
