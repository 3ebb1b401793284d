//! Whether a container's filter lets a zygote live under it: a small interpreter of such filters, for calls whose arguments
//! do not matter.

use super::order::{Instruction, instructions};

/// How a zygote makes its children; all that clone(2) is asked for by one that has moved in.
pub(super) const FLAGS: u32 =
    (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID)
        .cast_unsigned();

/// What it calls, and what its children call before their program. clone is looked at by itself.
const CALLS: [libc::c_long; 11] = [
    libc::SYS_recvmsg,
    libc::SYS_close_range,
    libc::SYS_futex,
    libc::SYS_clone,
    libc::SYS_setsid,
    libc::SYS_write,
    libc::SYS_dup3,
    libc::SYS_rt_sigprocmask,
    libc::SYS_execve,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
];

/// `AUDIT_ARCH_X86_64`, the one architecture with zygotes.
const ARCHITECTURE: u32 = 0xc000_003e;

/// `SECCOMP_RET_ALLOW`.
const ALLOW: u32 = 0x7fff_0000;

/// Offsets in `struct seccomp_data`: the call, the architecture, and the halves of the first argument.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const FIRST_AT: u32 = 16;
const FIRST_HIGH_AT: u32 = 20;

/// Whether a zygote may live, and make processes, under this filter (an array of `struct sock_filter`; empty for none).
/// A filter that does more with one of its calls than to allow it, be it a line in a log, keeps it out.
pub fn allows_home(filter: &[u8]) -> bool {
    if filter.is_empty() {
        return true;
    }
    let Ok(program) = instructions(filter) else {
        return false;
    };
    CALLS.iter().all(|call| {
        let first = (*call == libc::SYS_clone).then_some(FLAGS);
        u32::try_from(*call).is_ok_and(|call| decide(&program, call, first) == Some(ALLOW))
    })
}

/// What the program says of a call, if it looks at nothing but what is known here.
fn decide(program: &[Instruction], call: u32, first: Option<u32>) -> Option<u32> {
    const LOAD: u16 = 0x20;
    const AND: u16 = 0x54;
    const JUMP: u16 = 0x05;
    const EQUAL: u16 = 0x15;
    const GREATER: u16 = 0x25;
    const GREATER_EQUAL: u16 = 0x35;
    const BITS: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let (mut at, mut held) = (0_usize, 0_u32);
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        let branch = |taken: bool| usize::from(if taken { jt } else { jf });
        // Always forward, so it ends.
        at += 1;
        match code {
            LOAD => {
                held = match (k, first) {
                    (NUMBER_AT, _) => call,
                    (ARCHITECTURE_AT, _) => ARCHITECTURE,
                    (FIRST_AT, Some(first)) => first,
                    (FIRST_HIGH_AT, Some(_)) => 0,
                    _ => return None,
                }
            }
            AND => held &= k,
            JUMP => at = at.checked_add(usize::try_from(k).ok()?)?,
            EQUAL => at += branch(held == k),
            GREATER => at += branch(held > k),
            GREATER_EQUAL => at += branch(held >= k),
            BITS => at += branch(held & k != 0),
            RETURN => return Some(k),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(program: &[(u16, u8, u8, u32)]) -> Vec<u8> {
        let bytes = |&(code, jt, jf, k): &(u16, u8, u8, u32)| {
            let (code, k): ([u8; 2], [u8; 4]) = (code.to_ne_bytes(), k.to_ne_bytes());
            [&code[..], &[jt, jf], &k].concat()
        };
        program.iter().flat_map(bytes).collect()
    }

    fn number(call: libc::c_long) -> u32 {
        u32::try_from(call).unwrap()
    }

    #[test]
    fn a_filter_that_allows_all_calls_of_a_zygote_is_a_home() {
        assert!(allows_home(&[]));
        assert!(allows_home(&filter(&[(0x06, 0, 0, ALLOW)])));
        // clone without new namespaces only, as the usual profiles say it.
        let clone = number(libc::SYS_clone);
        let usual = |mask| {
            filter(&[
                (0x20, 0, 0, 4),
                (0x15, 0, 6, ARCHITECTURE),
                (0x20, 0, 0, 0),
                (0x15, 0, 3, clone),
                (0x20, 0, 0, 16),
                (0x54, 0, 0, mask),
                (0x15, 0, 1, 0),
                (0x06, 0, 0, ALLOW),
                (0x06, 0, 0, 0x0005_0001),
            ])
        };
        assert!(allows_home(&usual(0x7e02_0000)));
        assert!(!allows_home(&usual(FLAGS)));
    }

    #[test]
    fn a_filter_that_refuses_logs_or_looks_into_a_call_is_none() {
        for call in CALLS.map(number) {
            for action in [0x0005_0001, 0x7ffc_0000, 0] {
                let program = [
                    (0x20, 0, 0, 0),
                    (0x15, 0, 1, call),
                    (0x06, 0, 0, action),
                    (0x06, 0, 0, ALLOW),
                ];
                assert!(!allows_home(&filter(&program)), "{call} {action:x}");
            }
            let looks = [
                (0x20, 0, 0, 0),
                (0x15, 0, 1, call),
                (0x20, 0, 0, 24),
                (0x06, 0, 0, ALLOW),
            ];
            assert!(!allows_home(&filter(&looks)), "{call}");
        }
    }

    #[test]
    fn what_is_no_filter_is_none() {
        for program in [
            &[(0x20, 0, 0, 0)][..],
            &[(0x05, 0, 0, u32::MAX)],
            &[(0x15, 200, 200, 0)],
            &[(0x87, 0, 0, 0)],
        ] {
            assert!(!allows_home(&filter(program)));
        }
        assert!(!allows_home(&[0; 7]));
    }
}
