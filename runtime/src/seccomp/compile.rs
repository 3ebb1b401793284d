//! Policy → BPF program, by libseccomp.
//!
//! libseccomp writes the program to a file descriptor; a memory file takes it, so nothing touches a disk.

use std::io::{Read, Seek};

use libseccomp::{
    ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall,
};

use super::SeccompError;
use super::profile::{Arg, Policy, Recent, Rule};
use super::shorten::shorten;

/// libseccomp's optimisation level 2 sorts the system calls into a binary tree. The kernel runs the
/// program once for every call number when it is loaded, so a short path also makes loading fast.
const BINARY_TREE: u32 = 2;

/// Compiles a policy to an array of `struct sock_filter` in native byte order.
pub(super) fn compile(policy: &Policy) -> Result<Vec<u8>, SeccompError> {
    let program = as_written(policy)?;
    Ok(shorten(&program).unwrap_or(program))
}

/// The program as libseccomp writes it.
pub(super) fn as_written(policy: &Policy) -> Result<Vec<u8>, SeccompError> {
    let default = action(&policy.default_action, policy.default_errno_ret)?;
    let mut filter = ScmpFilterContext::new(default).map_err(failed("context"))?;
    for name in &policy.architectures {
        let arch: ScmpArch = name
            .parse()
            .map_err(|_| SeccompError::Compile(format!("unknown architecture {name:?}")))?;
        // An architecture of another family than the machine's cannot be called here.
        if related(arch) {
            filter.add_arch(arch).map_err(failed("architecture"))?;
        }
    }
    // Not in every libseccomp; without it the filter is slower and decides the same.
    let _ = filter.set_ctl_optimize(BINARY_TREE);
    for rule in &policy.syscalls {
        add_rule(&mut filter, rule, default)?;
    }
    let program = export(&filter)?;
    Ok(match &policy.recent {
        Some(recent) => [prelude(recent)?, program].concat(),
        None => program,
    })
}

fn add_rule(
    filter: &mut ScmpFilterContext,
    rule: &Rule,
    default: ScmpAction,
) -> Result<(), SeccompError> {
    let action = action(&rule.action, rule.errno_ret)?;
    if action == default {
        return Ok(()); // Says nothing new; libseccomp refuses it.
    }
    let conditions = conditions(&rule.args)?;
    for name in &rule.names {
        let Ok(syscall) = ScmpSyscall::from_name(name) else {
            continue;
        };
        for condition in &conditions {
            filter
                .add_rule_conditional(action, syscall, condition)
                .map_err(failed(name))?;
        }
    }
    Ok(())
}

/// The alternatives of a rule: one conjunction when every condition is on another argument, otherwise one
/// rule per condition, since libseccomp takes only one condition per argument.
fn conditions(args: &[Arg]) -> Result<Vec<Vec<ScmpArgCompare>>, SeccompError> {
    let compares = args.iter().map(compare).collect::<Result<Vec<_>, _>>()?;
    let indices: std::collections::HashSet<_> = args.iter().map(|arg| arg.index).collect();
    let repeats = indices.len() < args.len();
    Ok(if repeats {
        compares.into_iter().map(|one| vec![one]).collect()
    } else {
        vec![compares]
    })
}

fn compare(arg: &Arg) -> Result<ScmpArgCompare, SeccompError> {
    if arg.index > 5 {
        return Err(SeccompError::Compile(format!(
            "argument index {} is not 0..=5",
            arg.index
        )));
    }
    let (op, value) = match arg.op.as_str() {
        "SCMP_CMP_NE" => (ScmpCompareOp::NotEqual, arg.value),
        "SCMP_CMP_LT" => (ScmpCompareOp::Less, arg.value),
        "SCMP_CMP_LE" => (ScmpCompareOp::LessOrEqual, arg.value),
        "SCMP_CMP_EQ" => (ScmpCompareOp::Equal, arg.value),
        "SCMP_CMP_GE" => (ScmpCompareOp::GreaterEqual, arg.value),
        "SCMP_CMP_GT" => (ScmpCompareOp::Greater, arg.value),
        "SCMP_CMP_MASKED_EQ" => (ScmpCompareOp::MaskedEqual(arg.value), arg.value_two),
        other => {
            return Err(SeccompError::Compile(format!(
                "unknown comparison {other:?}"
            )));
        }
    };
    Ok(ScmpArgCompare::new(arg.index, op, value))
}

fn action(name: &str, value: Option<u16>) -> Result<ScmpAction, SeccompError> {
    Ok(match name {
        "SCMP_ACT_ALLOW" => ScmpAction::Allow,
        "SCMP_ACT_LOG" => ScmpAction::Log,
        "SCMP_ACT_ERRNO" => ScmpAction::Errno(value.map_or(libc::EPERM, i32::from)),
        "SCMP_ACT_TRACE" => ScmpAction::Trace(value.unwrap_or(1)),
        "SCMP_ACT_TRAP" => ScmpAction::Trap,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => ScmpAction::KillThread,
        "SCMP_ACT_KILL_PROCESS" => ScmpAction::KillProcess,
        other => {
            return Err(SeccompError::Compile(format!(
                "unsupported action {other:?}"
            )));
        }
    })
}

/// Whether calls of this architecture can reach the kernel that we run on.
fn related(arch: ScmpArch) -> bool {
    let x86 = [ScmpArch::X86, ScmpArch::X8664, ScmpArch::X32];
    let arm = [ScmpArch::Arm, ScmpArch::Aarch64];
    let native = ScmpArch::native();
    arch == ScmpArch::Native
        || arch == native
        || (x86.contains(&arch) && x86.contains(&native))
        || (arm.contains(&arch) && arm.contains(&native))
}

fn export(filter: &ScmpFilterContext) -> Result<Vec<u8>, SeccompError> {
    let io = |error: std::io::Error| SeccompError::Compile(format!("memory file: {error}"));
    let memory = rustix::fs::memfd_create("seccomp", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| io(error.into()))?;
    let mut memory = std::fs::File::from(memory);
    filter.export_bpf(&memory).map_err(failed("export"))?;
    memory.rewind().map_err(io)?;
    let mut program = Vec::new();
    memory.read_to_end(&mut program).map_err(io)?;
    Ok(program)
}

/// The instructions in front of the program that judge recent calls. Jumps in BPF are relative and forward,
/// so the program behind stays as it is.
fn prelude(recent: &Recent) -> Result<Vec<u8>, SeccompError> {
    /// Numbers from here on are private ranges (x32, ARM), which the program itself decides.
    const PRIVATE: u32 = 1024;
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_GREATER: u16 = 0x25;
    const JUMP_GREATER_EQUAL: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const ENOSYS: u32 = 0x0005_0000 | libc::ENOSYS.unsigned_abs();

    let count = u8::try_from(recent.except.len())
        .ok()
        .filter(|count| *count < 200)
        .ok_or_else(|| SeccompError::Compile("too many exceptions".into()))?;
    let mut code = vec![
        instruction(LOAD, 0, 0, 0), // the call's number
        instruction(JUMP_GREATER_EQUAL, 0, count + 4, recent.first), // older: the program
        instruction(JUMP_GREATER_EQUAL, count + 3, 0, PRIVATE), // private: the program
        instruction(JUMP_GREATER, count + 1, 0, recent.newest), // newer: ENOSYS
    ];
    for (index, number) in (0..count).zip(&recent.except) {
        code.push(instruction(JUMP_EQUAL, count - index + 1, 0, *number)); // the program
    }
    code.push(instruction(RETURN, 0, 0, ALLOW));
    code.push(instruction(RETURN, 0, 0, ENOSYS));
    Ok(code.concat())
}

/// `struct sock_filter`.
fn instruction(code: u16, jump_true: u8, jump_false: u8, k: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[0..2].copy_from_slice(&code.to_ne_bytes());
    bytes[2] = jump_true;
    bytes[3] = jump_false;
    bytes[4..8].copy_from_slice(&k.to_ne_bytes());
    bytes
}

fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> SeccompError {
    move |error| SeccompError::Compile(format!("{what}: {error}"))
}
