//! RuntimeDefault: what a container may call when nobody says otherwise.
//!
//! The policy is the one that users of Docker and containerd know, since images are built against it:
//! everything that an ordinary program needs, the rest answered with EPERM; calls that belong to a
//! capability are open to containers that have it. Calls newer than this table are answered with ENOSYS,
//! so that a newer C library falls back instead of failing.

use super::profile::{Arg, Policy, Recent, Rule};

/// From here on (cachestat, Linux 6.5) an older libseccomp does not know calls by name.
const RECENT: u32 = 451;
/// The newest call that this table has judged (`file_setattr`, Linux 6.17).
const NEWEST: u32 = 469;
/// open_tree_attr makes mounts. The other recent ones are about futexes, own memory, permissions, extended
/// attributes and reading one's own mounts and security labels.
const RECENT_DENIED: [u32; 1] = [467];

/// Allowed without condition.
#[rustfmt::skip]
const ALLOWED: &[&str] = &[
    // Files.
    "access", "chdir", "chmod", "chown", "chown32", "close", "close_range", "copy_file_range", "creat",
    "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fadvise64_64", "fallocate", "fchdir",
    "fchmod", "fchmodat", "fchmodat2", "fchown", "fchown32", "fchownat", "fcntl", "fcntl64", "fdatasync",
    "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat", "fstat64", "fstatat64",
    "fstatfs", "fstatfs64", "fsync", "ftruncate", "ftruncate64", "futimesat", "getcwd", "getdents",
    "getdents64", "getxattr", "ioctl", "lchown", "lchown32", "lgetxattr", "link", "linkat", "listxattr",
    "llistxattr", "_llseek", "lremovexattr", "lseek", "lsetxattr", "lstat", "lstat64", "mkdir", "mkdirat",
    "mknod", "mknodat", "name_to_handle_at", "newfstatat", "open", "openat", "openat2", "pread64", "preadv",
    "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv",
    "removexattr", "rename", "renameat", "renameat2", "rmdir", "sendfile", "sendfile64", "setxattr",
    "splice", "stat", "stat64", "statfs", "statfs64", "statx", "symlink", "symlinkat", "sync",
    "sync_file_range", "sync_file_range2", "arm_sync_file_range", "syncfs", "tee", "truncate",
    "truncate64", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimensat_time64", "utimes",
    "vmsplice", "write", "writev", "fanotify_mark", "inotify_add_watch", "inotify_init", "inotify_init1",
    "inotify_rm_watch", "cachestat",
    // Waiting for files, and asynchronous input and output.
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2",
    "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "io_cancel", "io_destroy", "io_getevents",
    "io_pgetevents", "io_pgetevents_time64", "io_setup", "io_submit", "_newselect", "pipe", "pipe2", "poll",
    "ppoll", "ppoll_time64", "pselect6", "pselect6_time64", "select", "signalfd", "signalfd4",
    "timerfd_create", "timerfd_gettime", "timerfd_gettime64", "timerfd_settime", "timerfd_settime64",
    // Sockets; `socket` itself has conditions.
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recv",
    "recvfrom", "recvmmsg", "recvmmsg_time64", "recvmsg", "send", "sendmmsg", "sendmsg", "sendto",
    "setsockopt", "shutdown", "socketcall", "socketpair",
    // Memory.
    "brk", "madvise", "map_shadow_stack", "membarrier", "memfd_create", "memfd_secret", "mincore", "mlock",
    "mlock2", "mlockall", "mmap", "mmap2", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall",
    "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "remap_file_pages",
    // Processes and threads; `clone` and `personality` have conditions.
    "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_requeue",
    "futex_time64", "futex_wait", "futex_waitv", "futex_wake", "getcpu", "getegid", "getegid32", "geteuid",
    "geteuid32", "getgid", "getgid32", "getgroups", "getgroups32", "getpgid", "getpgrp", "getpid",
    "getppid", "getpriority", "getresgid", "getresgid32", "getresuid", "getresuid32", "get_robust_list",
    "getrlimit", "getrusage", "getsid", "get_thread_area", "gettid", "getuid", "getuid32", "ioprio_get",
    "ioprio_set", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "nice",
    "pidfd_open", "pidfd_send_signal", "prctl", "prlimit64", "process_mrelease", "process_vm_readv",
    "process_vm_writev", "ptrace", "rseq", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getscheduler", "sched_rr_get_interval",
    "sched_rr_get_interval_time64", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "sched_yield", "seccomp", "setfsgid", "setfsgid32", "setfsuid", "setfsuid32",
    "setgid", "setgid32", "setgroups", "setgroups32", "setpgid", "setpriority", "setregid", "setregid32",
    "setresgid", "setresgid32", "setresuid", "setresuid32", "setreuid", "setreuid32", "setrlimit",
    "set_robust_list", "setsid", "set_thread_area", "set_tid_address", "setuid", "setuid32", "ugetrlimit",
    "vfork", "wait4", "waitid", "waitpid",
    // Signals.
    "kill", "pause", "restart_syscall", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigtimedwait_time64",
    "rt_tgsigqueueinfo", "sigaction", "sigaltstack", "signal", "sigpending", "sigprocmask", "sigreturn",
    "sigsuspend", "tgkill", "tkill",
    // Time. adjtime calls check CAP_SYS_TIME for what they change.
    "adjtimex", "alarm", "clock_adjtime", "clock_adjtime64", "clock_getres", "clock_getres_time64",
    "clock_gettime", "clock_gettime64", "clock_nanosleep", "clock_nanosleep_time64", "getitimer",
    "gettimeofday", "nanosleep", "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun",
    "timer_gettime", "timer_gettime64", "timer_settime", "timer_settime64", "times",
    // System V and POSIX inter-process communication.
    "ipc", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedreceive_time64",
    "mq_timedsend", "mq_timedsend_time64", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl",
    "semget", "semop", "semtimedop", "semtimedop_time64", "shmat", "shmctl", "shmdt", "shmget",
    // The system.
    "getrandom", "sysinfo", "uname",
];

/// Allowed on the machine's own family of architectures.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[&str] = &["arch_prctl", "modify_ldt", "uretprobe"];
/// Allowed on the machine's own family of architectures.
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[&str] = &["arm_fadvise64_64", "breakpoint", "cacheflush", "set_tls"];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: &[&str] = &["SCMP_ARCH_X86", "SCMP_ARCH_X32"];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: &[&str] = &["SCMP_ARCH_ARM"];

/// What a capability (by its number) opens.
#[rustfmt::skip]
const BY_CAPABILITY: &[(u32, &[&str])] = &[
    (2 /* DAC_READ_SEARCH */, &["open_by_handle_at"]),
    (16 /* SYS_MODULE */, &["delete_module", "finit_module", "init_module"]),
    (17 /* SYS_RAWIO */, &["ioperm", "iopl"]),
    (18 /* SYS_CHROOT */, &["chroot"]),
    (19 /* SYS_PTRACE */, &["kcmp", "pidfd_getfd", "process_madvise"]),
    (20 /* SYS_PACCT */, &["acct"]),
    (SYS_ADMIN, &[
        "bpf", "clone", "clone3", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "lookup_dcookie",
        "mount", "mount_setattr", "move_mount", "open_tree", "perf_event_open", "quotactl", "quotactl_fd",
        "setdomainname", "sethostname", "setns", "syslog", "umount", "umount2", "unshare",
    ]),
    (22 /* SYS_BOOT */, &["reboot"]),
    (23 /* SYS_NICE */, &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    (25 /* SYS_TIME */, &["clock_settime", "clock_settime64", "settimeofday", "stime"]),
    (26 /* SYS_TTY_CONFIG */, &["vhangup"]),
    (34 /* SYSLOG */, &["syslog"]),
    (38 /* PERFMON */, &["perf_event_open"]),
    (39 /* BPF */, &["bpf"]),
];

const SYS_ADMIN: u32 = 21;

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;

/// `personality` values: Linux, 32-bit Linux, either with uname 2.6, and the question.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// AF_ALG and AF_VSOCK reach kernel code and the hypervisor past every namespace.
const AF_ALG: u64 = 38;
const AF_VSOCK: u64 = 40;

/// The capabilities on which the policy depends; containers that agree in these share a program.
pub(super) fn relevant_capabilities() -> u64 {
    BY_CAPABILITY
        .iter()
        .fold(0, |bits, (number, _)| bits | 1 << number)
}

/// The default policy for a container with these capabilities.
pub(super) fn policy(capabilities: u64) -> Policy {
    let mut syscalls = vec![allow(ALLOWED), allow(ALLOWED_HERE)];
    for (number, names) in BY_CAPABILITY {
        if capabilities & (1 << number) != 0 {
            syscalls.push(allow(names));
        }
    }
    if capabilities & (1 << SYS_ADMIN) == 0 {
        syscalls.push(Rule {
            args: vec![Arg {
                value_two: 0,
                ..arg("SCMP_CMP_MASKED_EQ", NAMESPACE_FLAGS)
            }],
            ..allow(&["clone"])
        });
        // Its flags are behind a pointer, where no filter sees them. The C library falls back to clone.
        syscalls.push(Rule {
            action: "SCMP_ACT_ERRNO".into(),
            errno_ret: u16::try_from(libc::ENOSYS).ok(),
            ..allow(&["clone3"])
        });
    }
    // One condition a rule: "neither 38 nor 40" on one argument is not something a filter can say at once.
    for condition in [
        arg("SCMP_CMP_LT", AF_ALG),
        arg("SCMP_CMP_EQ", AF_ALG + 1),
        arg("SCMP_CMP_GT", AF_VSOCK),
    ] {
        syscalls.push(Rule {
            args: vec![condition],
            ..allow(&["socket"])
        });
    }
    for value in PERSONALITIES {
        syscalls.push(Rule {
            args: vec![arg("SCMP_CMP_EQ", value)],
            ..allow(&["personality"])
        });
    }
    Policy {
        default_action: "SCMP_ACT_ERRNO".into(),
        default_errno_ret: None,
        architectures: ARCHITECTURES.iter().map(ToString::to_string).collect(),
        flags: Vec::new(),
        syscalls,
        recent: Some(Recent {
            first: RECENT,
            newest: NEWEST,
            except: RECENT_DENIED.to_vec(),
        }),
    }
}

fn allow(names: &[&str]) -> Rule {
    Rule {
        names: names.iter().map(ToString::to_string).collect(),
        action: "SCMP_ACT_ALLOW".into(),
        ..Rule::default()
    }
}

fn arg(op: &str, value: u64) -> Arg {
    Arg {
        index: 0,
        value,
        value_two: 0,
        op: op.into(),
    }
}
