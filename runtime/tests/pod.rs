//! Pods through the runtime, with real shims, namespaces, mounts and cgroups: needs root.
//!
//! Every test has a [`rig::Rig`] of its own: directories, cgroups, names. When it ends, nothing of it may be
//! left on the machine.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "pod/adopt.rs"]
mod adopt;
#[path = "pod/confine.rs"]
mod confine;
#[path = "../copied_program.rs"]
mod copied_program;
#[cfg(target_arch = "x86_64")]
#[expect(dead_code, reason = "the rest is for the tests of the shim")]
#[path = "../shim/tests/root/elf.rs"]
mod elf;
#[path = "pod/exec.rs"]
mod exec;
#[path = "pod/fakes.rs"]
mod fakes;
#[path = "pod/guard.rs"]
mod guard;
#[cfg(target_arch = "x86_64")]
#[path = "pod/hostile.rs"]
mod hostile;
#[path = "pod/life.rs"]
mod life;
#[path = "pod/limits.rs"]
mod limits;
#[path = "pod/mounts.rs"]
mod mounts;
#[path = "pod/namespaces.rs"]
mod namespaces;
#[path = "pod/oom.rs"]
mod oom;
#[path = "pod/rig.rs"]
mod rig;
#[path = "../static_programs.rs"]
mod static_programs;
#[path = "pod/stats.rs"]
mod stats;
#[path = "pod/stuck.rs"]
mod stuck;
#[cfg(target_arch = "x86_64")]
#[path = "pod/syscalls.rs"]
mod syscalls;
#[path = "pod/undo.rs"]
mod undo;
#[path = "pod/update.rs"]
mod update;
#[path = "pod/users.rs"]
mod users;
#[path = "pod/whole.rs"]
mod whole;
