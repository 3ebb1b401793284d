//! StartSandbox: spawns pause, the process that holds the pod's namespaces.
//!
//! In the child, in this order: network namespace joined by descriptor, host name, sysctls (through the
//! verified procfs, now in the new namespaces), oom_score_adj, the pod's user namespace if it has one, `/dev/null` as
//! stdio, every privilege given up, exec from a sealed mount. Nothing of this depends on bytes of a container, so that the shim waits for it.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::protocol::{FailureKind, Namespace, Reply, SandboxSpec};
use hanok_shim::sys::clone::{Cloned, clone_process, ns, setns};
use hanok_shim::sys::{exec, process, signal};
use rustix::process::{Gid, Uid, setsid};
use rustix::system::sethostname;
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::cgroup::{Cgroups, Entry};
use crate::channel::{Line, Received, Report};
use crate::failure::{Doing, Failure, Result, complain, describe};
use crate::host::sealed_program;
use crate::shim::{Outcome, Shim};

/// User and group of pause; it needs no rights at all.
const NOBODY: u32 = 65_535;

/// Longest host name (`__NEW_UTS_LEN`).
pub(crate) const MAX_HOSTNAME: usize = 64;

/// The pod's holder of namespaces.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pid: i32,
    pidfd: OwnedFd,
    /// The namespaces that pause has not from the node, as [`ns`] bits.
    namespaces: u64,
    /// The v1 cgroups that it is not in yet.
    unjoined: Option<Entry>,
    /// Closing the last descriptor of a detached mount waits for an RCU grace period too; this one is
    /// closed with the shim.
    _program: OwnedFd,
}

impl Sandbox {
    /// Its process id; 0 after its end.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Whether pause is in a namespace of its own of this kind.
    pub(crate) fn has(&self, namespace: u64) -> bool {
        self.namespaces & namespace != 0
    }

    pub(crate) fn set_exited(&mut self) {
        self.pid = 0;
    }
}

impl Shim {
    #[inline(never)]
    pub(crate) fn start_sandbox(&mut self, spec: &SandboxSpec) -> Result<Outcome> {
        if self.sandbox.is_some() {
            return Err(Failure::new(
                FailureKind::Exists,
                "the sandbox is started already",
            ));
        }
        let plan = plan(spec)?;
        let program = CString::new(spec.pause.as_bytes())
            .map_err(|_| Failure::invalid("path of pause has a NUL byte"))?;
        let program = sealed_program(&program)?;
        let cgroup = Cgroups::new(&spec.cgroups).entry()?;
        let (line, child_line) = Line::pair().doing(|| "make a channel")?;
        line.set_blocking().doing(|| "make a channel")?;
        let new = if self.users.is_some() { 0 } else { plan.new };
        let cloned = clone_process(new, cgroup.at_clone()).doing(|| "clone pause")?;
        let Cloned::Parent { pid, pidfd } = cloned else {
            // Or the end of the shim would not be seen on the channel.
            drop(line);
            let failure = self.become_pause(spec, &plan, &program, &child_line);
            child_line.report_failure(failure);
            exec::exit_now(1);
        };
        drop(child_line);
        let mut pause = Pause { pid, pidfd };
        if let Err(failure) = wait_for_exec(&line, &mut pause) {
            // Reaped by the loop; the caller needs only that it runs no more.
            let _ = process::pidfd_kill(&pause.pidfd, libc::SIGKILL);
            return Err(failure);
        }
        let Pause { pid, pidfd } = pause;
        self.sandbox = Some(Sandbox {
            pid,
            pidfd,
            namespaces: plan.own,
            unjoined: Some(cgroup),
            _program: program,
        });
        Ok(Outcome::Done(Reply::Started { pid }))
    }

    /// Puts pause into its v1 cgroups, after the caller has its answer: the write waits for an RCU grace
    /// period of about 15 ms, in which the caller prepares the first container. When it fails, the sandbox
    /// ends.
    pub(crate) fn join_sandbox(&mut self) {
        let Some(sandbox) = &mut self.sandbox else {
            return;
        };
        let Some(cgroup) = sandbox.unjoined.take() else {
            return;
        };
        if let Err(failure) = cgroup.join(sandbox.pid) {
            let _ = process::pidfd_kill(&sandbox.pidfd, libc::SIGKILL);
            complain(&failure);
        }
    }
}

/// The process that is to be pause.
struct Pause {
    pid: i32,
    pidfd: OwnedFd,
}

/// A [`SandboxSpec`]'s namespaces, checked.
struct Plan {
    /// Made by clone.
    new: u64,
    /// Not the node's.
    own: u64,
    net: Option<File>,
}

fn plan(spec: &SandboxSpec) -> Result<Plan> {
    let mut plan = Plan {
        new: 0,
        own: 0,
        net: None,
    };
    for (name, namespace, bit) in [
        ("ipc", &spec.ipc, ns::IPC),
        ("uts", &spec.uts, ns::UTS),
        ("pid", &spec.pid, ns::PID),
    ] {
        match namespace {
            Namespace::Host => {}
            Namespace::New => {
                plan.new |= bit;
                plan.own |= bit;
            }
            other => {
                return Err(Failure::invalid(format!(
                    "{name} namespace of a sandbox: {other:?}"
                )));
            }
        }
    }
    match &spec.net {
        Namespace::Host => {}
        Namespace::Path(path) => {
            plan.own |= ns::NET;
            let file = File::open(path).doing(|| format!("open network namespace {path}"))?;
            plan.net = Some(file);
        }
        other => {
            return Err(Failure::invalid(format!(
                "network namespace of a sandbox: {other:?}"
            )));
        }
    }
    if spec.hostname.len() > MAX_HOSTNAME {
        return Err(Failure::invalid(format!(
            "host name {:?} is too long",
            spec.hostname
        )));
    }
    Ok(plan)
}

fn wait_for_exec(line: &Line, pause: &mut Pause) -> Result<()> {
    let mut executing = false;
    loop {
        match line.receive().doing(|| "hear from pause")? {
            Received::Report(Report::Executing, _) => executing = true,
            Received::Report(Report::Succeeded { pid }, Some(pidfd)) => {
                *pause = Pause { pid, pidfd };
                line.permit().doing(|| "wake pause")?;
            }
            Received::Report(Report::Failed { kind, message }, _) => {
                return Err(Failure { kind, message });
            }
            Received::End if executing => return Ok(()),
            Received::End => return Err(Failure::system("pause ended before it could start")),
            Received::Report(..) | Received::Empty => {}
        }
    }
}

impl Shim {
    /// Child: everything up to exec. Returns only when it failed.
    fn become_pause(
        &self,
        spec: &SandboxSpec,
        plan: &Plan,
        program: &OwnedFd,
        line: &Line,
    ) -> Failure {
        if let Err(failure) = self.prepare_pause(spec, plan, line) {
            return failure;
        }
        let argv = [c"pause".to_owned()];
        let errno = exec::execve_fd(program, &argv, &[]);
        Failure::system(format!("cannot exec {}: {}", spec.pause, describe(errno)))
    }

    fn prepare_pause(&self, spec: &SandboxSpec, plan: &Plan, line: &Line) -> Result<()> {
        let host = &self.host;
        setsid().doing(|| "begin a session")?;
        if let Some(users) = &self.users {
            users.join(plan.new)?;
        }
        if let Some(net) = &plan.net {
            setns(net, ns::NET).doing(|| "join the network namespace")?;
        }
        if plan.own & ns::UTS != 0 && !spec.hostname.is_empty() {
            sethostname(spec.hostname.as_bytes()).doing(|| "set the host name")?;
        }
        // Those of the user namespace are of the one that the writer is in.
        let of_users = |name: &str| name.starts_with("user.") || name.starts_with("user/");
        let (inside, outside): (Vec<_>, Vec<_>) = spec
            .sysctls
            .iter()
            .partition(|(name, _)| self.users.is_some() && of_users(name));
        for (name, value) in outside {
            let written = host.write_sysctl(name, value);
            match (&self.users, written) {
                // Some belong to the root of the user namespace, others, on older kernels, to the node's.
                (Some(users), Err(_)) => users.as_root(|| host.write_sysctl(name, value))?,
                (_, written) => written?,
            }
        }
        // Best effort: below the shim's own value it takes CAP_SYS_RESOURCE.
        let _ = host.write_proc("self/oom_score_adj", &spec.oom_score_adj.to_string());
        if let Some(users) = &self.users {
            users.enter(line, plan.new & ns::PID != 0)?;
        }
        for (name, value) in inside {
            host.write_sysctl(name, value)?;
        }
        let null = host.null.as_fd();
        rustix::stdio::dup2_stdin(null).doing(|| "set stdin")?;
        rustix::stdio::dup2_stdout(null).doing(|| "set stdout")?;
        rustix::stdio::dup2_stderr(null).doing(|| "set stderr")?;
        drop_privileges()?;
        signal::reset().doing(|| "reset signals")?;
        exec::close_on_exec_from(3).doing(|| "close descriptors")?;
        line.report(&Report::Executing, None).doing(|| "report")
    }
}

fn drop_privileges() -> Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[]).doing(|| "drop groups")?;
    set_thread_res_gid(group, group, group).doing(|| "change group")?;
    set_thread_res_uid(user, user, user).doing(|| "change user")?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).doing(|| "drop capabilities")?;
    set_no_new_privs(true).doing(|| "set no_new_privs")
}
