//! What a container costs: time, memory and output, beside Debian's runc, crun and conmon in the same run.
//!
//! `make bench-runtime`, as root; on its own `cargo bench -p hanok-runtime --bench runtime -- [--rounds N] [PART...]`
//! with `HANOK` for `hanok-oci` or `hanok` and `HANOK_PROGRAMS` for the directory of all programs. Parts are `time`, `limit`,
//! `memory` and `log`; and `ours`, which is `time` without the others.
//!
//! Everybody starts the same container: the one that hanok makes for a pod, whose `config.json` the others get, with
//! the same namespaces, mounts, masked paths, capabilities, limits and RuntimeDefault. It is measured as hanok starts
//! it, in process by the runtime's API and a shim that is there already, and by command lines, `hanok-oci` among them.
//! The [`floor`] makes the bare system calls of it. Command lines and floor run in a [`worker`], since the floor
//! wants one thread, and who waits for a runtime's orphans must not be the parent of hanok's shims.
//!
//! Nothing is left behind: containers, cgroups, network namespaces, files.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

#[path = "../../copied_program.rs"]
mod copied_program;
#[path = "../../tests/pod/fakes.rs"]
mod fakes;
#[path = "../../tests/pod/rig.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod rig;
#[path = "../../static_programs.rs"]
mod static_programs;

mod arena;
mod command;
mod containerd;
mod floor;
mod in_process;
mod limit;
mod log;
mod memory;
mod report;
mod time;
mod worker;

use std::path::{Path, PathBuf};

use arena::Arena;
use in_process::Pod;
use report::Report;
use worker::Worker;

/// The runtimes of command lines, ours first.
const RUNTIMES: [&str; 3] = ["oci", "runc", "crun"];

/// The part that is only measured when it is asked for: times of ours and the floor, some twenty times as many in the same
/// time as with the others.
const OURS: &str = "ours";

/// What is measured.
struct Options {
    rounds: usize,
    parts: Vec<String>,
}

impl Options {
    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|one| one == part)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, dir] = arguments.as_slice()
        && verb == worker::VERB
    {
        return worker::serve(Path::new(dir));
    }
    // Records live on a tmpfs, as /run is one.
    tempfile::env::override_temp_dir(Path::new("/dev/shm")).unwrap();
    leave_unified_hierarchy();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = options(&arguments);
    // As an agent calls: from a task. Whoever blocks on the runtime is woken by way of a second thread.
    let measuring = runtime.spawn(async move { measure(&options).await });
    runtime.block_on(measuring).unwrap();
}

fn options(arguments: &[String]) -> Options {
    let mut options = Options {
        rounds: 30,
        parts: Vec::new(),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => options.rounds = words.next().unwrap().parse().unwrap(),
            // cargo's own.
            "--bench" => {}
            part => options.parts.push(part.to_owned()),
        }
    }
    options
}

/// crun takes no v2 hierarchy beside v1; without it in a mount namespace of our own, everybody has the same ones.
fn leave_unified_hierarchy() {
    use hanok_shim::sys::clone::{ns, unshare};
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
    unshare(ns::MNT).unwrap();
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .unwrap();
    // There is none where all is v1 or all is v2.
    let _ = unmount("/sys/fs/cgroup/unified", UnmountFlags::DETACH);
}

/// The program whose command line is measured.
fn hanok() -> PathBuf {
    std::env::var_os("HANOK").map_or_else(|| rig::programs().join("hanok-oci"), PathBuf::from)
}

async fn measure(options: &Options) {
    let mut report = Report::default();
    let pod = Pod::new().await;
    let arena = Arena::new(&pod.spec(), &hanok());
    let mut worker = Worker::start(&arena);
    if options.wants("time") {
        let what = (&RUNTIMES[..], options.rounds);
        time::measure(&pod, &mut worker, what, &mut report).await;
    }
    if options.parts.iter().any(|part| part == OURS) {
        let what = (&RUNTIMES[..1], options.rounds);
        time::measure(&pod, &mut worker, what, &mut report).await;
    }
    if options.wants("limit") {
        limit::measure(&pod, &mut worker, &mut report).await;
    }
    if options.wants("log") {
        log::measure(&pod, &arena, &mut report).await;
    }
    if options.wants("memory") {
        memory::measure(&pod, &arena, &mut report).await;
    }
    drop(worker);
    drop(arena);
    pod.finish().await;
    report.finish();
}
