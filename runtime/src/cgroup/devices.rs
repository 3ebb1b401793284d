//! Which devices a container may use: nothing but what is listed.

use std::fmt;
use std::path::Path;

use hanok_shim::sys::bpf::{INSTRUCTION, attach_device_filter};

use super::{CgroupError, write_each, write_file};

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAccess {
    /// Every device.
    All,
    /// Character devices; `None` is every number.
    Char(Option<u32>, Option<u32>),
    /// Block devices; `None` is every number.
    Block(Option<u32>, Option<u32>),
}

/// An entry of the list of allowed devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRule {
    /// Which devices.
    pub access: DeviceAccess,
    /// Of "rwm": read, write, mknod.
    pub permissions: String,
}

impl DeviceRule {
    /// Every access to every device: privileged containers.
    pub fn everything() -> Vec<DeviceRule> {
        vec![DeviceRule {
            access: DeviceAccess::All,
            permissions: "rwm".into(),
        }]
    }

    /// What every container gets: its own null, zero, full, random, urandom, tty, console, ptmx and
    /// terminals. Making any device node is allowed (it takes CAP_MKNOD); using it is not.
    pub fn standard() -> Vec<DeviceRule> {
        use DeviceAccess::{Block, Char};
        let make = [Char(None, None), Block(None, None)].map(|access| DeviceRule {
            access,
            permissions: "m".into(),
        });
        let standard = [
            (1, 3),
            (1, 5),
            (1, 7),
            (1, 8),
            (1, 9),
            (5, 0),
            (5, 1),
            (5, 2),
        ];
        let standard = standard.map(|(major, minor)| Char(Some(major), Some(minor)));
        make.into_iter()
            .chain(
                standard
                    .into_iter()
                    .chain([Char(Some(136), None)])
                    .map(|access| DeviceRule {
                        access,
                        permissions: "rwm".into(),
                    }),
            )
            .collect()
    }
}

/// The line that v1's devices.allow takes.
impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, major, minor) = match self.access {
            DeviceAccess::All => return f.write_str("a"),
            DeviceAccess::Char(major, minor) => ('c', major, minor),
            DeviceAccess::Block(major, minor) => ('b', major, minor),
        };
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        write!(
            f,
            "{kind} {}:{} {}",
            number(major),
            number(minor),
            self.permissions
        )
    }
}

/// A new v1 cgroup allows what its parent allows; so first nothing, then the list.
pub(super) fn restrict_v1(directory: &Path, rules: &[DeviceRule]) -> Result<(), CgroupError> {
    if rules.iter().any(|rule| rule.access == DeviceAccess::All) {
        return Ok(());
    }
    write_file(&directory.join("devices.deny"), "a")?;
    let lines = rules.iter().map(DeviceRule::to_string);
    write_each(&directory.join("devices.allow"), lines)
}

/// On v2 the list is a program that the kernel runs at every access.
pub(crate) fn restrict_v2(directory: &Path, rules: &[DeviceRule]) -> Result<(), CgroupError> {
    if rules.iter().any(|rule| rule.access == DeviceAccess::All) {
        return Ok(());
    }
    let failed = |source| CgroupError::Io {
        verb: "restrict the devices of",
        path: directory.to_owned(),
        source,
    };
    let cgroup = std::fs::File::open(directory).map_err(failed)?;
    attach_device_filter(&cgroup, &program(rules)).map_err(|error| failed(error.into()))
}

/// The list as eBPF for `struct bpf_cgroup_dev_ctx`: allowed if one rule fits.
fn program(rules: &[DeviceRule]) -> Vec<u8> {
    /// `BPF_DEVCG_DEV_*`.
    const BLOCK: u32 = 1;
    const CHAR: u32 = 2;
    let mut code = vec![
        // r2 = type, r3 = access, r4 = major, r5 = minor
        instruction(LOAD_WORD, 2, 1, 0, 0),
        instruction(MOVE, 3, 2, 0, 0),
        instruction(AND, 2, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, 3, 0, 0, 16),
        instruction(LOAD_WORD, 4, 1, 4, 0),
        instruction(LOAD_WORD, 5, 1, 8, 0),
    ];
    for rule in rules {
        let (kind, major, minor) = match rule.access {
            DeviceAccess::All => (None, None, None),
            DeviceAccess::Char(major, minor) => (Some(CHAR), major, minor),
            DeviceAccess::Block(major, minor) => (Some(BLOCK), major, minor),
        };
        // What is asked for beyond what the rule grants.
        let beyond = !access_bits(&rule.permissions);
        let mut tests = vec![
            instruction(MOVE, 0, 3, 0, 0),
            instruction(AND, 0, 0, 0, beyond),
        ];
        let mut skips = vec![(0, 0)];
        skips.extend(kind.map(|kind| (2, kind)));
        skips.extend(major.map(|major| (4, major)));
        skips.extend(minor.map(|minor| (5, minor)));
        // Each test that fails jumps behind the two instructions that allow.
        let mut ahead = i16::try_from(skips.len()).unwrap_or(i16::MAX) + 2;
        for (register, wanted) in skips {
            ahead -= 1;
            tests.push(instruction(JUMP_UNLESS_EQUAL, register, 0, ahead, wanted));
        }
        code.extend(tests);
        code.extend([instruction(SET, 0, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)]);
    }
    code.extend([instruction(SET, 0, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    code.concat()
}

/// `BPF_DEVCG_ACC_*` bits.
fn access_bits(permissions: &str) -> u32 {
    let bits = [('m', 1), ('r', 2), ('w', 4)];
    bits.iter()
        .filter(|(letter, _)| permissions.contains(*letter))
        .fold(0, |all, (_, bit)| all | bit)
}

/// eBPF operations, all on 32 bits.
const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbc;
const SET: u8 = 0xb4;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const JUMP_UNLESS_EQUAL: u8 = 0x56;
const EXIT: u8 = 0x95;

/// `struct bpf_insn`.
fn instruction(operation: u8, to: u8, from: u8, offset: i16, value: u32) -> [u8; INSTRUCTION] {
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    let mut bytes = [0; INSTRUCTION];
    bytes[0] = operation;
    bytes[1] = registers;
    bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
    bytes[4..8].copy_from_slice(&value.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_list_is_the_one_of_the_oci_runtimes() {
        let lines: Vec<String> = DeviceRule::standard()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "c *:* m",
                "b *:* m",
                "c 1:3 rwm",
                "c 1:5 rwm",
                "c 1:7 rwm",
                "c 1:8 rwm",
                "c 1:9 rwm",
                "c 5:0 rwm",
                "c 5:1 rwm",
                "c 5:2 rwm",
                "c 136:* rwm",
            ]
        );
    }
}
