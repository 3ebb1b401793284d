//! `sh` in images of the conformance suite: busybox's shell, or bash where an environment variable's name is no shell
//! name. busybox's drops such variables, bash hands them on, and the suite wants the one's messages and the other's
//! environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Whether this program was started as a shell.
pub(crate) fn is_name(arg0: &OsStr) -> bool {
    Path::new(arg0).file_name() == Some(OsStr::new("sh"))
}

/// Becomes the shell; returns only when that fails.
pub(crate) fn become_shell(arg0: &OsStr, args: impl Iterator<Item = OsString>) -> io::Error {
    let plain = env::vars_os().all(|(name, _)| is_shell_name(name.as_bytes()));
    let shell = if plain { "/bin/busybox" } else { "/bin/bash" };
    Command::new(shell).arg0(arg0).args(args).exec()
}

fn is_shell_name(name: &[u8]) -> bool {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    !name.is_empty() && !name[0].is_ascii_digit() && name.iter().all(fits)
}
