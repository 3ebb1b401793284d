//! A BPF interpreter judges the compiled programs, so no process has to be locked in to test them.

use super::*;
use crate::api::SeccompProfile::{Localhost, RuntimeDefault, Unconfined};

const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;
const X86_64: u32 = 0xc000_003e;

/// Runs a program on one system call, as the kernel would.
fn judge(filter: &Filter, arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend_from_slice(&number.to_ne_bytes());
    data.extend_from_slice(&arch.to_ne_bytes());
    data.extend_from_slice(&0u64.to_ne_bytes());
    args.iter()
        .for_each(|arg| data.extend_from_slice(&arg.to_ne_bytes()));
    let (mut accumulator, mut at) = (0u32, 0usize);
    loop {
        let op = &filter.program[at * 8..at * 8 + 8];
        let code = u16::from_ne_bytes([op[0], op[1]]);
        let k = u32::from_ne_bytes([op[4], op[5], op[6], op[7]]);
        let branch = |yes: bool| 1 + usize::from(if yes { op[2] } else { op[3] });
        at += match code {
            0x20 => {
                let k = k as usize;
                accumulator = u32::from_ne_bytes(data[k..k + 4].try_into().unwrap());
                1
            }
            0x05 => 1 + k as usize,
            0x15 => branch(accumulator == k),
            0x25 => branch(accumulator > k),
            0x35 => branch(accumulator >= k),
            0x45 => branch(accumulator & k != 0),
            0x54 => {
                accumulator &= k;
                1
            }
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        };
    }
}

fn number(name: &str) -> u32 {
    libseccomp::ScmpSyscall::from_name(name)
        .unwrap()
        .as_raw_syscall()
        .try_into()
        .unwrap()
}

fn default_filter(capabilities: u64) -> Arc<Filter> {
    Filters::new("/nowhere".into())
        .get(&RuntimeDefault, capabilities)
        .unwrap()
        .unwrap()
}

fn profile(json: &str) -> Result<Arc<Filter>, SeccompError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.json"), json).unwrap();
    let filters = Filters::new(dir.path().to_owned());
    filters
        .get(&Localhost("p.json".into()), 0)
        .map(Option::unwrap)
}

#[test]
fn default_allows_what_programs_need_and_denies_the_rest() {
    let filter = default_filter(0);
    for name in [
        "read",
        "execve",
        "openat",
        "futex",
        "mmap",
        "epoll_wait",
        "statx",
        "ptrace",
    ] {
        assert_eq!(
            judge(&filter, X86_64, number(name), [0; 6]),
            ALLOW,
            "{name}"
        );
    }
    for name in [
        "unshare",
        "setns",
        "mount",
        "umount2",
        "bpf",
        "perf_event_open",
        "keyctl",
        "add_key",
        "request_key",
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "open_by_handle_at",
        "kexec_load",
        "init_module",
        "finit_module",
        "reboot",
        "chroot",
        "clock_settime",
        "syslog",
        "pivot_root",
        "swapon",
        "acct",
        "iopl",
        "move_mount",
        "open_tree",
    ] {
        assert_eq!(
            judge(&filter, X86_64, number(name), [0; 6]),
            EPERM,
            "{name}"
        );
    }
}

#[test]
fn clone_is_allowed_without_namespace_flags_only() {
    let filter = default_filter(0);
    let thread = [0x003d_0f00, 0, 0, 0, 0, 0];
    assert_eq!(judge(&filter, X86_64, number("clone"), thread), ALLOW);
    for flag in [
        0x0002_0000,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ] {
        assert_eq!(
            judge(&filter, X86_64, number("clone"), [flag, 0, 0, 0, 0, 0]),
            EPERM
        );
    }
    assert_eq!(judge(&filter, X86_64, number("clone3"), [0; 6]), ENOSYS);
}

#[test]
fn socket_families_that_leave_the_namespace_are_denied() {
    let filter = default_filter(0);
    for (family, verdict) in [
        (1, ALLOW),
        (2, ALLOW),
        (10, ALLOW),
        (16, ALLOW),
        (38, EPERM),
        (39, ALLOW),
        (40, EPERM),
        (41, ALLOW),
    ] {
        assert_eq!(
            judge(&filter, X86_64, number("socket"), [family, 0, 0, 0, 0, 0]),
            verdict,
            "{family}"
        );
    }
}

#[test]
fn capabilities_open_their_calls() {
    let filter = default_filter(1 << 21);
    for name in ["unshare", "mount", "setns", "clone3", "bpf"] {
        assert_eq!(
            judge(&filter, X86_64, number(name), [0; 6]),
            ALLOW,
            "{name}"
        );
    }
    assert_eq!(
        judge(
            &filter,
            X86_64,
            number("clone"),
            [0x0002_0000, 0, 0, 0, 0, 0]
        ),
        ALLOW
    );
    assert_eq!(judge(&filter, X86_64, number("reboot"), [0; 6]), EPERM);
    assert_eq!(
        judge(&default_filter(1 << 18), X86_64, number("chroot"), [0; 6]),
        ALLOW
    );
}

#[test]
fn personality_values_are_limited() {
    let filter = default_filter(0);
    for (value, verdict) in [
        (0, ALLOW),
        (8, ALLOW),
        (0xffff_ffff, ALLOW),
        (0x004_0000, EPERM),
    ] {
        assert_eq!(
            judge(
                &filter,
                X86_64,
                number("personality"),
                [value, 0, 0, 0, 0, 0]
            ),
            verdict
        );
    }
}

#[test]
fn calls_of_the_future_are_unknown_and_not_forbidden() {
    let filter = default_filter(0);
    assert_eq!(judge(&filter, X86_64, 470, [0; 6]), ENOSYS);
    assert_eq!(judge(&filter, X86_64, 1000, [0; 6]), ENOSYS);
    for allowed in [452, 457, 462, 463, 469] {
        assert_eq!(judge(&filter, X86_64, allowed, [0; 6]), ALLOW, "{allowed}");
    }
    assert_eq!(judge(&filter, X86_64, 467, [0; 6]), EPERM, "open_tree_attr");
}

#[test]
fn calls_of_the_32_bit_ways_in_are_judged_too() {
    let filter = default_filter(0);
    let i386 = 0x4000_0003;
    assert_eq!(judge(&filter, i386, 3, [0; 6]), ALLOW, "read");
    assert_eq!(judge(&filter, i386, 21, [0; 6]), EPERM, "mount");
    assert_eq!(
        judge(&filter, X86_64, 0x4000_0000, [0; 6]),
        ALLOW,
        "x32 read"
    );
    assert_eq!(
        judge(&filter, X86_64, 0x4000_0000 + 165, [0; 6]),
        EPERM,
        "x32 mount"
    );
}

#[test]
fn a_shortened_program_decides_as_the_one_that_was_written() {
    let json = r#"{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "syscalls": [
            {"names": ["read", "write", "close"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_NE"}]},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["ptrace"], "action": "SCMP_ACT_KILL_PROCESS"}]}"#;
    let policies = [
        default::policy(0),
        default::policy(u64::MAX),
        Policy::parse(json.as_bytes()).unwrap(),
    ];
    let values = [0, 16, 0x1000_0000, 0x2_0000, u64::MAX];
    for policy in policies {
        let filter = |program| Filter { program, flags: 0 };
        let (long, short) = (
            filter(compile::as_written(&policy).unwrap()),
            filter(compile::compile(&policy).unwrap()),
        );
        let (written, left) = (long.program.len() / 8, short.program.len() / 8);
        assert!(left * 2 < written || written < 100, "{written} to {left}");
        for arch in [X86_64, 0x4000_0003, 0xc000_00b7, 0, u32::MAX] {
            let numbers = (0..1100)
                .chain(0x3fff_fff0..0x4000_0400)
                .chain([1 << 31, u32::MAX]);
            for number in numbers {
                for value in values {
                    for args in [[value; 6], [value, 0, 0, 0, 0, 0]] {
                        let (want, got) = (
                            judge(&long, arch, number, args),
                            judge(&short, arch, number, args),
                        );
                        assert_eq!(want, got, "{arch:#x} {number} {args:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_such_program_is_not_shortened() {
    let one = |code: u16, k: u32| [&code.to_ne_bytes()[..], &[0, 0], &k.to_ne_bytes()].concat();
    let (number, end) = (one(0x20, 0), one(0x06, ALLOW));
    for program in [
        vec![],
        vec![1, 2, 3],
        end.clone(),
        // Falls off the end; jumps out of it; computes with the number.
        number.clone(),
        [one(0x05, 9), end.clone()].concat(),
        [number.clone(), one(0x54, 1), one(0x15, 1), end.clone()].concat(),
    ] {
        assert_eq!(shorten::shorten(&program), None, "{program:?}");
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(program in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
        let _ = shorten::shorten(&program);
    }
}

#[test]
fn equal_capabilities_share_a_program() {
    let filters = Filters::new("/nowhere".into());
    let one = filters.get(&RuntimeDefault, 0b1).unwrap().unwrap();
    let two = filters.get(&RuntimeDefault, 0b11).unwrap().unwrap();
    assert!(
        Arc::ptr_eq(&one, &two),
        "CHOWN and DAC_OVERRIDE do not change the filter"
    );
    assert_eq!(one.flags, FLAG_SPEC_ALLOW);
    assert!(
        one.program.len() < 4096 * 8,
        "the kernel takes 4096 instructions"
    );
    assert_eq!(filters.get(&Unconfined, 0).unwrap(), None);
}

#[test]
fn localhost_profile_takes_conditions_errno_and_flags() {
    let filter = profile(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_AARCH64"],
            "flags":["SECCOMP_FILTER_FLAG_LOG"],"archMap":null,
            "syscalls":[
              {"names":["mkdir","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":30},
              {"names":["kill"],"action":"SCMP_ACT_ERRNO","args":[{"index":1,"value":9,"op":"SCMP_CMP_EQ"}]},
              {"names":["dup2"],"action":"SCMP_ACT_ERRNO","args":[
                {"index":0,"value":1,"op":"SCMP_CMP_EQ"},{"index":0,"value":2,"op":"SCMP_CMP_EQ"}]},
              {"names":["personality"],"action":"SCMP_ACT_ERRNO","args":[
                {"index":0,"value":240,"valueTwo":16,"op":"SCMP_CMP_MASKED_EQ"}]}]}"#,
    )
    .unwrap();
    assert_eq!(filter.flags, 2);
    assert_eq!(judge(&filter, X86_64, number("mkdir"), [0; 6]), 0x0005_001e);
    assert_eq!(
        judge(&filter, X86_64, number("kill"), [1, 9, 0, 0, 0, 0]),
        EPERM
    );
    assert_eq!(
        judge(&filter, X86_64, number("kill"), [1, 15, 0, 0, 0, 0]),
        ALLOW
    );
    assert_eq!(
        judge(&filter, X86_64, number("dup2"), [2, 0, 0, 0, 0, 0]),
        EPERM
    );
    assert_eq!(
        judge(&filter, X86_64, number("dup2"), [3, 0, 0, 0, 0, 0]),
        ALLOW
    );
    assert_eq!(
        judge(
            &filter,
            X86_64,
            number("personality"),
            [0x1f, 0, 0, 0, 0, 0]
        ),
        EPERM
    );
    assert_eq!(
        judge(&filter, X86_64, 470, [0; 6]),
        ALLOW,
        "no rule of ours in a profile of theirs"
    );
}

#[test]
fn broken_profiles_are_errors() {
    let table = [
        ("{}", "is not valid"),
        (
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"X"}]}"#,
            "action",
        ),
        (r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
        (
            r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_VAX"]}"#,
            "SCMP_ARCH_VAX",
        ),
        (
            r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":["NEW_LISTENER"]}"#,
            "NEW_LISTENER",
        ),
        (
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_ERRNO",
                "args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
            "argument index 6",
        ),
        ("", "empty"),
    ];
    for (json, expected) in table {
        let error = profile(json).unwrap_err().to_string();
        assert!(error.contains(expected), "{json}: {error}");
    }
}

#[test]
fn missing_profiles_and_paths_that_climb_are_errors() {
    let filters = Filters::new("/nowhere".into());
    assert!(matches!(
        filters.get(&Localhost("a.json".into()), 0),
        Err(SeccompError::Read { .. })
    ));
    assert!(matches!(
        filters.get(&Localhost("../a.json".into()), 0),
        Err(SeccompError::Path { .. })
    ));
}
