//! Which file to execute: as it is named, or the first one of that name in PATH.
//!
//! Candidates are collected before the privileges go and before the seccomp filter comes, so that after it
//! nothing but execve is called. Whether the user may execute one is for execve to say.

use std::ffi::CString;

use hanok_shim::protocol::{FailureKind, MAX_STRINGS};
use hanok_shim::sys::exec;
use hanok_shim::sys::memory::page_size;
use rustix::fs::{FileType, stat};
use rustix::io::Errno;

use super::c_string;
use crate::failure::{Failure, Result, describe};

/// Searched when the environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Most pages of one string, with its NUL: the kernel's MAX_ARG_STRLEN.
const MAX_STRING_PAGES: usize = 32;

/// Most characters of a variable's name in a message: an image may have any.
const LONGEST_NAME: usize = 64;

/// A program that is there, with all that execve needs.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    candidates: Vec<CString>,
    argv: Vec<CString>,
    envp: Vec<CString>,
}

impl Program {
    /// Looks for `args[0]`.
    pub(super) fn find(args: &[String], env: &[String]) -> Result<Self> {
        let name = args.first().filter(|n| !n.is_empty());
        let name = name
            .ok_or_else(|| Failure::invalid("no program is given"))?
            .clone();
        let strings = |list: &[String], what| {
            list.iter()
                .map(|s| c_string(s, what))
                .collect::<Result<Vec<_>>>()
        };
        let argv = strings(args, "an argument")?;
        let envp = strings(env, "an environment variable")?;
        let candidates = if name.contains('/') {
            vec![named(&name)?]
        } else {
            search(&name, env)?
        };
        Ok(Self {
            name,
            candidates,
            argv,
            envp,
        })
    }

    /// Replaces this process. Returns only when that failed.
    pub(super) fn exec(&self) -> Failure {
        let mut worst = Errno::NOENT;
        for candidate in &self.candidates {
            match exec::execve(candidate, &self.argv, &self.envp) {
                Errno::NOENT | Errno::NOTDIR => {}
                errno => worst = errno,
            }
        }
        match worst {
            Errno::TOOBIG => self.too_big(),
            errno => failure(&self.name, errno),
        }
    }

    /// What takes the most room, and how much there is.
    fn too_big(&self) -> Failure {
        let size = |text: &CString| text.as_bytes_with_nul().len() + size_of::<usize>();
        let all = self.argv.iter().chain(&self.envp);
        let total: usize = all.map(size).sum();
        let words = self.argv.iter().map(|word| (size(word), None));
        let variables = self.envp.iter().map(|one| (size(one), Some(one)));
        let (most, whose) = words.chain(variables).max().unwrap_or_default();
        let whose = whose.map_or("an argument".to_owned(), |variable| {
            let text = variable.to_string_lossy();
            let name = text.split('=').next().unwrap_or_default();
            let name: String = name.chars().take(LONGEST_NAME).collect();
            format!("variable {name:?}")
        });
        let Failure { kind, message } = failure(&self.name, Errno::TOOBIG);
        let max_string = max_string();
        let message = format!(
            "{message}: arguments and environment have {total} bytes, {whose} alone {most}; one may have {max_string}, \
             and all a quarter of the stack's limit, at most {MAX_STRINGS}"
        );
        Failure { kind, message }
    }
}

/// Most bytes of one string, with its NUL.
fn max_string() -> usize {
    MAX_STRING_PAGES * page_size()
}

/// Where the program of `args` may be, without a look: the shim sees the node's files. None for what is no name.
pub(crate) fn candidates(args: &[String], env: &[String]) -> Option<Vec<String>> {
    let name = args.first().filter(|name| !name.is_empty())?;
    match name.contains('/') {
        true => Some(vec![name.clone()]),
        false => Some(directories(env).map(|dir| below(dir, name)).collect()),
    }
}

/// A program named by its path.
fn named(path: &str) -> Result<CString> {
    let file = c_string(path, "the program's path")?;
    match stat(file.as_c_str()) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
            Err(failure(path, Errno::ISDIR))
        }
        // Told at creation, as runc does, and not at the start.
        Ok(found) if found.st_mode & 0o111 == 0 => Err(failure(path, Errno::ACCESS)),
        Ok(_) => Ok(file),
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let message = format!("exec: {path:?}: stat {path}: no such file or directory");
            Err(Failure::new(FailureKind::CommandNotFound, message))
        }
        Err(errno) => Err(failure(path, errno)),
    }
}

/// The directories of PATH. An empty element would mean the working directory, which is nobody's intention here.
fn directories(env: &[String]) -> impl Iterator<Item = &str> {
    let path = env.iter().rev().find_map(|e| e.strip_prefix("PATH="));
    path.unwrap_or(DEFAULT_PATH)
        .split(':')
        .filter(|dir| !dir.is_empty())
}

fn below(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

/// Files of that name in the directories of PATH.
fn search(name: &str, env: &[String]) -> Result<Vec<CString>> {
    let mut candidates = Vec::new();
    let mut denied = false;
    for dir in directories(env) {
        let file = c_string(&below(dir, name), "the program's path")?;
        let Ok(found) = stat(file.as_c_str()) else {
            continue;
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            continue;
        }
        if found.st_mode & 0o111 == 0 {
            denied = true;
            continue;
        }
        candidates.push(file);
    }
    match candidates.is_empty() {
        false => Ok(candidates),
        true if denied => Err(failure(name, Errno::ACCESS)),
        true => {
            let message = format!("exec: {name:?}: executable file not found in $PATH");
            Err(Failure::new(FailureKind::CommandNotFound, message))
        }
    }
}

fn failure(name: &str, errno: Errno) -> Failure {
    let kind = match errno {
        Errno::NOENT | Errno::NOTDIR => FailureKind::CommandNotFound,
        Errno::NOMEM | Errno::AGAIN => FailureKind::System,
        _ => FailureKind::CommandNotExecutable,
    };
    Failure::new(kind, format!("exec: {name:?}: {}", describe(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(args: &[&str], path: &str) -> Result<Program> {
        let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        Program::find(&args, &[format!("PATH={path}")])
    }

    #[test]
    fn a_missing_program_is_told_as_everybody_tells_it() {
        let failure = find(&["nowhere-to-be-found"], "/bin:/usr/bin").unwrap_err();
        assert_eq!(failure.kind, FailureKind::CommandNotFound);
        let want = "exec: \"nowhere-to-be-found\": executable file not found in $PATH";
        assert_eq!(failure.message, want);
        let failure = find(&["/no/such"], "").unwrap_err();
        assert_eq!(failure.kind, FailureKind::CommandNotFound);
        assert_eq!(
            failure.message,
            "exec: \"/no/such\": stat /no/such: no such file or directory"
        );
    }

    #[test]
    fn what_is_no_program_is_not_executable() {
        let failure = find(&["/etc"], "").unwrap_err();
        assert_eq!(failure.kind, FailureKind::CommandNotExecutable);
        for name in ["passwd", "/etc/passwd"] {
            let failure = find(&[name], "/etc").unwrap_err();
            assert_eq!(failure.kind, FailureKind::CommandNotExecutable);
            let want = format!("exec: {name:?}: permission denied");
            assert_eq!(failure.message, want);
        }
    }

    #[test]
    fn the_longest_string_is_what_the_kernel_takes() {
        let status = |length| {
            let text = "x".repeat(length - 1);
            std::process::Command::new("true").arg(text).status()
        };
        assert!(status(max_string()).unwrap().success());
        let errno = status(max_string() + 1).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(libc::E2BIG));
    }

    #[test]
    fn arguments_with_nul_and_empty_commands_are_invalid() {
        for args in [&[] as &[&str], &[""], &["a\0b"], &["sh", "a\0"]] {
            assert_eq!(find(args, "/bin").unwrap_err().kind, FailureKind::Invalid);
        }
    }

    #[test]
    fn the_directories_of_path_are_tried_in_order() {
        let program = find(&["sh"], "/nowhere::/usr/bin/:/bin").unwrap();
        assert_eq!(program.candidates[0].to_str().unwrap(), "/usr/bin/sh");
    }
}
