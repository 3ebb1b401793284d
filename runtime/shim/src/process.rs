//! The last part of the way to exec, the same for a container's init and for an exec: limits, user, working
//! directory, stdio, labels, privileges, seccomp, program.
//!
//! Runs in the cloned process once it sees the container's root as its own, so that paths need no wall any
//! more; only links of procfs must still not lead out. What is done here is in the order that the
//! privileges for it allow, the seccomp filter last.

mod credentials;
mod cwd;
mod program;
mod terminal;
pub(crate) mod user;

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use hanok_shim::protocol::Process;
use hanok_shim::sys::{exec, process, signal};
use rustix::fs::{FileType, fchown, fstat};
use rustix::io::Errno;
use rustix::process::umask;

use crate::channel::{Line, Report, ResolvedUser};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::oci::Gate;
pub(crate) use cwd::make as make_cwd;
pub(crate) use program::candidates;
pub(crate) use terminal::open as open_terminal;

/// What becomes descriptors 0, 1 and 2.
#[derive(Debug)]
pub(crate) struct Stdio {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// All three are the slave side of a terminal, which becomes the controlling one.
    pub(crate) terminal: bool,
}

/// Turns this process into what `spec` says. Returns only when that failed. A `gate` holds it up once all
/// is prepared, until somebody starts it.
pub(crate) fn become_process(
    host: &Host,
    spec: &Process,
    stdio: Stdio,
    line: &Line,
    gate: Option<&Gate>,
) -> Failure {
    match try_become(host, spec, stdio, line, gate) {
        Ok(failure) | Err(failure) => failure,
    }
}

fn try_become(
    host: &Host,
    spec: &Process,
    stdio: Stdio,
    line: &Line,
    gate: Option<&Gate>,
) -> Result<Failure> {
    umask(rustix::fs::Mode::from_raw_mode(spec.umask.unwrap_or(0o022)));
    let user = match user::known(spec) {
        // Whoever has it from the container need not be told.
        Some(user) => user,
        None => {
            let user = user::resolve(&spec.user)?;
            line.report(&Report::Resolved(user.clone()), None)
                .doing(|| "report the user")?;
            user
        }
    };
    cwd::enter(&spec.cwd)?;
    // A keyring of the node's session would be shared by all containers. Not every kernel has keyrings.
    let _ = process::join_new_keyring();
    // What was duplicated is closed with the rest, by the exec.
    install_stdio(&stdio, &user, gate.is_some())
        .map_err(|failure| explain(host, &user, failure))?;
    let program = program::Program::find(&spec.args, &environment(spec, &user))?;
    exec::close_on_exec_from(gate.map_or(3, Gate::first_closed)).doing(|| "close descriptors")?;
    credentials::change_user(spec, &user).map_err(|failure| explain(host, &user, failure))?;
    signal::reset().doing(|| "reset signals")?;
    line.report(&Report::Executing, None).doing(|| "report")?;
    if let Some(gate) = gate {
        gate.pass()?;
    }
    credentials::confine(spec)?;
    Ok(program.exec())
}

/// Says of a user that is not mapped that it is not.
fn explain(host: &Host, user: &ResolvedUser, failure: Failure) -> Failure {
    let map = host.read_proc("self/uid_map").unwrap_or_default();
    let length = map
        .split_whitespace()
        .nth(2)
        .and_then(|word| word.parse::<u64>().ok());
    let most = length.unwrap_or(u64::MAX);
    let ids = user.groups.iter().chain([&user.uid, &user.gid]);
    match ids.copied().find(|&id| u64::from(id) >= most) {
        Some(id) => Failure::invalid(format!(
            "user or group {id} is outside of the pod's user namespace, which has ids up to {}",
            most.saturating_sub(1)
        )),
        None => failure,
    }
}

/// What takes the node's rights, and so comes before a user namespace is entered: resource limits, oom_score_adj, and
/// the label for the program that is executed.
pub(crate) fn set_limits_and_label(host: &Host, spec: &Process) -> Result<()> {
    for &(resource, soft, hard) in &spec.rlimits {
        process::set_rlimit(resource, soft, hard)
            .doing(|| format!("set resource limit {resource} to {soft}:{hard}"))?;
    }
    // Best effort: a value below the shim's own takes CAP_SYS_RESOURCE. Without a wish it is what the shim
    // was started with, for the shim itself is kept from the OOM killer.
    let score = spec.oom_score_adj.unwrap_or(host.oom_score_adj);
    let _ = host.write_proc("self/oom_score_adj", &score.to_string());
    set_label(host, spec)
}

/// Labels for the program that is executed: where one is written, or else there, and what.
pub(crate) fn labels(spec: &Process) -> Vec<([&'static str; 2], String)> {
    const ALL: &str = "thread-self/attr/exec";
    let profile = spec.apparmor.as_ref().map(|profile| {
        let own = "thread-self/attr/apparmor/exec";
        ([own, ALL], format!("exec {profile}"))
    });
    let label = spec.selinux.clone().map(|label| ([ALL, ALL], label));
    profile.into_iter().chain(label).collect()
}

fn set_label(host: &Host, spec: &Process) -> Result<()> {
    if let Some(profile) = &spec.apparmor {
        let value = format!("exec {profile}");
        host.write_proc("thread-self/attr/apparmor/exec", &value)
            .or_else(|_| host.write_proc("thread-self/attr/exec", &value))
            .map_err(|f| {
                Failure::system(format!("cannot apply AppArmor profile: {}", f.message))
            })?;
    }
    if let Some(label) = &spec.selinux {
        host.write_proc("thread-self/attr/exec", label)
            .map_err(|f| Failure::system(format!("cannot apply SELinux label: {}", f.message)))?;
    }
    Ok(())
}

/// Descriptors 0, 1 and 2, owned by the container's user as far as they are pipes or terminals: programs open
/// /dev/stdout. The node's null device and sockets of the runtime are left alone. `of_bundle`: `hanok oci` asks.
fn install_stdio(stdio: &Stdio, user: &ResolvedUser, of_bundle: bool) -> Result<()> {
    if stdio.terminal {
        rustix::process::ioctl_tiocsctty(&stdio.stdin).doing(|| "take the terminal")?;
    }
    for fd in [&stdio.stdin, &stdio.stdout, &stdio.stderr] {
        let stat = fstat(fd).doing(|| "stat a standard stream")?;
        let is_fifo = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        if (is_fifo || stdio.terminal) && stat.st_uid != user.uid {
            hand_over(fd, user.uid, of_bundle && !stdio.terminal)?;
        }
    }
    rustix::stdio::dup2_stdin(&stdio.stdin).doing(|| "set stdin")?;
    rustix::stdio::dup2_stdout(&stdio.stdout).doing(|| "set stdout")?;
    rustix::stdio::dup2_stderr(&stdio.stderr).doing(|| "set stderr")
}

/// Gives a stream to the container's user.
fn hand_over(stream: &OwnedFd, uid: u32, inherited: bool) -> Result<()> {
    let owner = rustix::process::Uid::from_raw(uid);
    match fchown(stream, Some(owner), None) {
        // One that `hanok oci` was started with has been handed to another container meanwhile, out of this one's user
        // namespace. It is open here all the same.
        Err(Errno::PERM) if inherited => Ok(()),
        done => done.doing(|| "hand over a standard stream"),
    }
}

/// The environment, with HOME.
fn environment(spec: &Process, user: &ResolvedUser) -> Vec<String> {
    let mut env = spec.env.clone();
    let has_home = env
        .iter()
        .any(|e| e.strip_prefix("HOME=").is_some_and(|h| !h.is_empty()));
    if !has_home {
        env.retain(|e| !e.starts_with("HOME="));
        env.push(format!("HOME={}", user.home));
    }
    env
}

/// A string for the kernel.
fn c_string(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Failure::invalid(format!("{what} has a NUL byte")))
}

/// The root directory that this process sees.
fn root() -> Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, "/", flags, Mode::empty()).doing(|| "open /")
}

/// A copy of a descriptor, close-on-exec.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).doing(|| "duplicate a descriptor")
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    #[test]
    fn only_a_stream_that_was_inherited_may_stay_somebody_elses() {
        // Rights are a thread's own, and are gone with it.
        let without_rights = std::thread::spawn(|| {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            };
            set_capabilities(None, sets).unwrap();
            let (stream, _far) = rustix::pipe::pipe().unwrap();
            let other = fstat(&stream).unwrap().st_uid + 1;
            hand_over(&stream, other, true).unwrap();
            hand_over(&stream, other, false).unwrap_err()
        });
        let failure = without_rights.join().unwrap();
        let want = "cannot hand over a standard stream";
        assert!(failure.message.starts_with(want), "{failure:?}");
    }
}
