//! Room for file descriptors, made before the first thread starts.

use std::os::fd::AsFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the table holds from the start. When a table shared by threads grows, every thread that opens or
/// closes a file waits for an RCU grace period: 8 to 20 ms, on the way of a pod.
const TABLE: i32 = 16 * 1024;

/// Raises the limit of open files to what is allowed, and grows the table. Best effort: less room costs time only.
pub fn make_room() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Fails only in a sandbox that forbids it; the lower limit then holds.
    let _ = setrlimit(Resource::Nofile, raised);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let highest = i32::try_from(most).unwrap_or(TABLE).min(TABLE) - 1;
    if let Ok(null) = std::fs::File::open("/dev/null") {
        // The duplicate is closed at once; the table stays as large as it was needed.
        drop(fcntl_dupfd_cloexec(null.as_fd(), highest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_grown_once_and_for_all() {
        make_room();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix("FDSize:"))
            .unwrap();
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(size.trim().parse::<u64>().unwrap() >= most.min(TABLE.unsigned_abs().into()));
    }
}
