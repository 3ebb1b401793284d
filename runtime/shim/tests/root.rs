//! The shim's laws, tried with real namespaces, mounts and cgroups: needs root.
//!
//! Every test has a pod of its own ([`rig::Pod`]): a shim, pause, and containers whose root filesystem is a
//! static busybox. When it is dropped, the shim is shut down and nothing may be left.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "root/ahead.rs"]
mod ahead;
#[path = "root/attach.rs"]
mod attach;
#[path = "root/canary.rs"]
mod canary;
#[path = "../../copied_program.rs"]
mod copied_program;
#[cfg(target_arch = "x86_64")]
#[path = "root/copy_up.rs"]
mod copy_up;
#[path = "root/corpus.rs"]
mod corpus;
#[cfg(target_arch = "x86_64")]
#[expect(dead_code, reason = "the rest is for the tests of the runtime")]
#[path = "root/elf.rs"]
mod elf;
#[path = "root/exec.rs"]
mod exec;
#[cfg(target_arch = "x86_64")]
#[path = "root/home.rs"]
mod home;
#[path = "root/hostile.rs"]
mod hostile;
#[path = "root/isolation.rs"]
mod isolation;
#[path = "root/life.rs"]
mod life;
#[path = "root/output.rs"]
mod output;
#[cfg(target_arch = "x86_64")]
#[path = "root/races.rs"]
mod races;
#[path = "root/rig.rs"]
mod rig;
#[path = "root/start.rs"]
mod start;
#[path = "../../static_programs.rs"]
mod static_programs;
#[path = "root/users.rs"]
mod users;
#[cfg(target_arch = "x86_64")]
#[path = "root/zygote.rs"]
mod zygote;
