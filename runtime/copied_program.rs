//! Programs that a test copies for its containers; a module of each such test.

use std::path::Path;
use std::process::Command;

/// Copies a program, by a process of its own. Whatever this one has open, a process that another thread makes meanwhile
/// has open too until it comes to its program; and what somebody may write to cannot be executed (`ETXTBSY`).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status();
    assert!(done.unwrap().success());
}
