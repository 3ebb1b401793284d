//! System calls of a container, by every ABI that the machine has.

use std::fs;

use hanok_runtime::api::{RuntimeService, SeccompProfile};

use crate::elf::{Abi, BUFFER, Program};
use crate::rig::Rig;

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

/// Name, number of x86-64 (and x32), number of i386, arguments.
type Call = (&'static str, u32, u32, &'static [u64]);

const NEW_USER: u64 = 0x1000_0000;
const SIGCHLD: u64 = 17;
const AF_ALG: u64 = 38;
const AF_VSOCK: u64 = 40;

/// What the default filter answers with EPERM. Their arguments are such that the kernel answers otherwise to somebody
/// with every capability.
const DENIED: [Call; 17] = [
    ("unshare", 272, 310, &[NEW_USER]),
    ("clone-user", 56, 120, &[NEW_USER | SIGCHLD, 0, 0, 0, 0]),
    ("setns", 308, 346, &[0, 0]),
    ("mount", 165, 21, &[BUFFER, BUFFER, BUFFER, 0, 0]),
    ("fsopen", 430, 430, &[BUFFER, 0]),
    ("open_tree", 428, 428, &[u64::MAX, BUFFER, 0]),
    ("bpf", 321, 357, &[0, BUFFER, 128]),
    (
        "perf_event_open",
        298,
        336,
        &[BUFFER, 0, u64::MAX, u64::MAX, 0],
    ),
    ("keyctl", 250, 288, &[0, 1 << 30, 0]),
    ("add_key", 248, 286, &[BUFFER, BUFFER, 0, 0, 0]),
    ("userfaultfd", 323, 374, &[0]),
    ("io_uring_setup", 425, 425, &[1, BUFFER]),
    ("socket-alg", 41, 359, &[AF_ALG, 5, 0]),
    ("socket-vsock", 41, 359, &[AF_VSOCK, 1, 0]),
    ("open_by_handle_at", 304, 342, &[0, BUFFER, 0]),
    ("kexec_load", 246, 283, &[0, 1 << 20, 0, 0]),
    ("init_module", 175, 128, &[BUFFER, 1, BUFFER]),
];

/// What a C library tries first, and does without.
const ABSENT: Call = ("clone3", 435, 435, &[BUFFER, 64]);

/// What every program needs.
const ALLOWED: [Call; 4] = [
    ("getpid", 39, 20, &[]),
    ("mkdir", 83, 39, &[BUFFER, 0o755]),
    ("socket-unix", 41, 359, &[1, 1, 0]),
    ("clone", 56, 120, &[SIGCHLD, 0, 0, 0, 0]),
];

fn calls() -> impl Iterator<Item = Call> {
    DENIED.into_iter().chain([ABSENT]).chain(ALLOWED)
}

/// Programs that make each call by each ABI, in /calls of the image, and a script that tells how each of them ended.
fn programs(rig: &Rig) -> &'static str {
    let dir = rig.path("layer/calls");
    fs::create_dir(&dir).unwrap();
    for (name, native, i386, arguments) in calls() {
        for (abi, number) in [(Abi::Native, native), (Abi::X32, native), (Abi::I386, i386)] {
            let path = dir.join(format!("{name}.{abi:?}"));
            Program::call(abi, number, arguments).write(&path);
        }
    }
    "for p in /calls/*; do $p 2>/dev/null; echo ${p#/calls/} $?; done"
}

fn answer(text: &str, name: &str, abi: Abi) -> i32 {
    let key = format!("{name}.{abi:?} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&key));
    line.unwrap_or_else(|| panic!("{key}: {text}"))
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn root_default_filter_answers_every_abi_alike() {
    let rig = Rig::new("abi").await;
    let sandbox = rig.sandbox().await.id;
    let script = programs(&rig);
    let (_, text) = rig.output(&sandbox, rig.script("c", script)).await;
    for (name, ..) in DENIED {
        for abi in [Abi::Native, Abi::I386] {
            assert_eq!(answer(&text, name, abi), EPERM, "{name} {abi:?}");
        }
        // Most kernels have no such ABI at all.
        let other = answer(&text, name, Abi::X32);
        assert!(matches!(other, EPERM | ENOSYS), "{name}: {other}");
    }
    for abi in [Abi::Native, Abi::I386, Abi::X32] {
        assert_eq!(answer(&text, ABSENT.0, abi), ENOSYS, "{abi:?}");
    }
    for (name, ..) in ALLOWED {
        for abi in [Abi::Native, Abi::I386] {
            // An empty name cannot be made.
            let want = if name == "mkdir" { 2 } else { 0 };
            assert_eq!(answer(&text, name, abi), want, "{name} {abi:?}");
        }
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_without_a_filter_the_same_calls_come_through() {
    let rig = Rig::new("nofilter").await;
    let sandbox = rig.sandbox().await.id;
    let script = programs(&rig);
    let mut config = rig.script("c", script);
    config.security.privileged = true;
    config.security.seccomp = SeccompProfile::Unconfined;
    let (_, text) = rig.output(&sandbox, config).await;
    for (name, ..) in DENIED {
        assert_ne!(answer(&text, name, Abi::Native), EPERM, "{name}");
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_profile_judges_the_abis_that_it_names_and_ends_who_uses_another() {
    let rig = Rig::new("archs").await;
    let sandbox = rig.sandbox().await.id;
    for (name, abi, number) in [("native", Abi::Native, 83), ("other", Abi::I386, 39)] {
        let program = Program::call(abi, number, &[BUFFER, 0o755]);
        program.write(&rig.path("layer/bin").join(name));
    }
    let path = rig.path("seccomp/p.json");
    let mut config = rig.script(
        "c",
        "for p in native other; do $p; echo $p $?; done 2>/dev/null",
    );
    config.security.seccomp = SeccompProfile::Localhost(path.clone());
    // No space left, by the profile; SIGSYS.
    for (named, want) in [
        (
            r#""SCMP_ARCH_X86_64","SCMP_ARCH_X86""#,
            "native 28\nother 28",
        ),
        (r#""SCMP_ARCH_X86_64""#, "native 28\nother 159"),
    ] {
        let profile = format!(
            r#"{{"defaultAction":"SCMP_ACT_ALLOW","architectures":[{named}],"syscalls":[
                {{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":28}}]}}"#
        );
        fs::write(&path, profile).unwrap();
        let (_, text) = rig.output(&sandbox, config.clone()).await;
        assert_eq!(text, want, "{named}");
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_rules_of_a_profile_look_at_arguments_and_a_broken_profile_starts_nothing() {
    let rig = Rig::new("arguments").await;
    let sandbox = rig.sandbox().await.id;
    let path = rig.path("seccomp/p.json");
    // By an error of its own, and by the end of the process, each for one argument.
    let profile = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
        {"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":28,"args":[{"index":1,"value":448,"op":"SCMP_CMP_NE"}]},
        {"names":["socket"],"action":"SCMP_ACT_KILL_PROCESS","args":[{"index":0,"value":2,"op":"SCMP_CMP_EQ"}]}]}"#;
    fs::write(&path, profile).unwrap();
    for (name, number, arguments) in [
        ("closed", 83, [BUFFER, 0o700, 0]),
        ("open", 83, [BUFFER, 0o755, 0]),
        ("unix", 41, [1, 1, 0]),
        ("inet", 41, [2, 1, 0]),
    ] {
        let program = Program::call(Abi::Native, number, &arguments);
        program.write(&rig.path("layer/bin").join(name));
    }
    let script = "for p in closed open unix inet; do $p; echo $p $?; done 2>/dev/null";
    let mut config = rig.script("c", script);
    config.security.seccomp = SeccompProfile::Localhost(path.clone());
    let (_, text) = rig.output(&sandbox, config.clone()).await;
    // No such file, as nothing of that name can be made; no space left; SIGSYS.
    assert_eq!(text, "closed 2\nopen 28\nunix 0\ninet 159");
    for (broken, reason) in [
        ("", "p.json"),
        ("{", "p.json"),
        (r#"{"defaultAction":"SCMP_ACT_MAYBE"}"#, "SCMP_ACT_MAYBE"),
        (
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]}"#,
            "NOTIFY",
        ),
    ] {
        fs::write(&path, broken).unwrap();
        let created = rig
            .runtime()
            .create_container(&sandbox, config.clone())
            .await;
        let error = created.unwrap_err().to_string();
        assert!(error.contains(reason), "{broken}: {error}");
    }
    rig.finish().await;
}
