//! Programs that do one thing no shell can: a system call by its number, in an ABI of choice. They are written as
//! machine code of x86-64, since a test has no compiler for what is to run inside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::copied_program::copy_program;

/// Where the program is mapped.
const BASE: u64 = 0x40_0000;

/// Headers of the file and of its one segment.
const HEADERS: u64 = 64 + 56;

/// Room for the code; what comes behind it is data.
const CODE: u64 = 384;

/// Address of [`DATA`] bytes that are the text of [`Program::text`] and then zero: what pointers point at.
pub(crate) const BUFFER: u64 = BASE + HEADERS + CODE;

/// Bytes behind the code.
const DATA: usize = 1024;

/// How a system call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abi {
    /// `syscall`.
    Native,
    /// `syscall` with the bit of x32.
    X32,
    /// `int 0x80`.
    I386,
}

/// A program in the making.
pub(crate) struct Program {
    code: Vec<u8>,
    text: Vec<u8>,
}

impl Program {
    /// Calls once; its exit code is the error's number, 0 for none.
    pub(crate) fn call(abi: Abi, number: u32, arguments: &[u64]) -> Self {
        let mut program = Self {
            code: vec![],
            text: vec![],
        };
        program.system_call(abi, number, arguments);
        // Negated; what was no error is 0.
        program.code.extend([0xf7, 0xd8, 0x79, 0x02, 0x31, 0xc0]);
        program.exit();
        program
    }

    /// Tries to take hold of every process from 3 to `last` by ptrace, again and again, and makes the directory
    /// `evidence` when it could.
    pub(crate) fn tracer(last: u32, evidence: &str) -> Self {
        let mut code = vec![0xbb];
        code.extend(3u32.to_le_bytes());
        // ptrace(PTRACE_SEIZE, ebx, 0, 0)
        code.extend([0xb8, 101, 0, 0, 0, 0xbf, 0x06, 0x42, 0, 0, 0x89, 0xde]);
        code.extend([0x31, 0xd2, 0x45, 0x31, 0xd2, 0x0f, 0x05]);
        // On success out of the loop, else the next one; after the last the first.
        code.extend([0x48, 0x85, 0xc0, 0x74, 0x0c, 0xff, 0xc3, 0x81, 0xfb]);
        code.extend(last.to_le_bytes());
        let back = |code: &[u8], to: usize| {
            let distance = code.len() + 2 - to;
            u8::try_from(256 - distance).unwrap()
        };
        let inner = back(&code, 5);
        code.extend([0x75, inner]);
        let outer = back(&code, 0);
        code.extend([0xeb, outer]);
        let mut program = Self {
            code,
            text: evidence.into(),
        };
        program.system_call(Abi::Native, 83, &[BUFFER, 0o700]);
        program.code.extend([0x31, 0xc0]);
        program.exit();
        program
    }

    /// Makes a directory: the sign that it was run where that path can be made.
    pub(crate) fn tell_tale(path: &Path) -> Self {
        let mut program = Self::call(Abi::Native, 83, &[BUFFER, 0o700]);
        program.text = path.to_str().unwrap().into();
        program
    }

    fn system_call(&mut self, abi: Abi, number: u32, arguments: &[u64]) {
        if abi == Abi::I386 {
            self.code.push(0xb8);
            self.code.extend(number.to_le_bytes());
            for (register, value) in [0xbb, 0xb9, 0xba, 0xbe, 0xbf].into_iter().zip(arguments) {
                self.code.push(register);
                self.code.extend(&value.to_le_bytes()[..4]);
            }
            return self.code.extend([0xcd, 0x80]);
        }
        let bit = if abi == Abi::X32 { 0x4000_0000 } else { 0 };
        self.code.push(0xb8);
        self.code.extend((number | bit).to_le_bytes());
        let registers = [
            [0x48, 0xbf],
            [0x48, 0xbe],
            [0x48, 0xba],
            [0x49, 0xba],
            [0x49, 0xb8],
            [0x49, 0xb9],
        ];
        for (register, value) in registers.into_iter().zip(arguments) {
            self.code.extend(register);
            self.code.extend(value.to_le_bytes());
        }
        self.code.extend([0x0f, 0x05]);
    }

    /// Ends with what eax holds.
    fn exit(&mut self) {
        self.code
            .extend([0x89, 0xc7, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
    }

    /// Writes it as an executable file.
    pub(crate) fn write(&self, path: &Path) {
        let size = HEADERS + CODE + DATA as u64;
        let mut file = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        for half in [2u16, 62] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1u32.to_le_bytes());
        for word in [BASE + HEADERS, 64, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend(0u32.to_le_bytes());
        for half in [64u16, 56, 1, 64, 0, 0] {
            file.extend(half.to_le_bytes());
        }
        // One segment that is loaded, to be read, written and executed.
        for half in [1u32, 7] {
            file.extend(half.to_le_bytes());
        }
        for word in [0, BASE, BASE, size, size, 4096] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&self.code);
        file.resize(usize::try_from(HEADERS + CODE).unwrap(), 0);
        file.extend(&self.text);
        file.resize(usize::try_from(size).unwrap(), 0);
        let written = path.with_extension("written");
        fs::write(&written, file).unwrap();
        copy_program(&written, path);
        fs::remove_file(&written).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}
