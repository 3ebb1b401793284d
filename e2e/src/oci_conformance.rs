//! The OCI validation programs of runtime-tools against `hanok oci` and against Debian's runc, side by side.
//!
//! Each runtime has a worker: this program again ([`inside`]), in a mount and a cgroup namespace of its own whose
//! root is a cgroup below ours. So the programs' absolute cgroup paths are below ours too, and mounts that a
//! container without a mount namespace makes are nobody else's. The two run at the same time. What a program says
//! is judged by [`verdict`], and what that means by [`report`].

pub mod inside;
pub mod report;
pub mod verdict;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::paths;
use report::{Known, Report};
use verdict::Verdict;
use worker::Worker;

/// What to compare.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Directory with the built programs, their root filesystem and `runtimetest`.
    #[arg(long)]
    pub programs: PathBuf,
    /// Programs that fail for a known reason, a line each: name, colon, reason.
    #[arg(long)]
    pub known: PathBuf,
    /// The runtime to compare with.
    #[arg(long, default_value = "runc")]
    pub peer: String,
    /// Programs to run, by name without `t-`; all when none is given.
    pub names: Vec<String>,
}

/// Runs them all.
///
/// # Errors
/// When a program or a runtime is missing, or a worker cannot work.
pub fn run(options: &Options) -> Result<Report> {
    let names = names(options)?;
    let known = Known::parse(&std::fs::read_to_string(&options.known).context("known failures")?)?;
    let hanok = std::path::absolute(paths::hanok()?)?;
    let ours = Worker::start("ours", hanok.as_os_str(), options, &names, &known)?;
    let peer = Worker::start("peer", options.peer.as_ref(), options, &names, &known)?;
    let collect = |worker: Worker| thread::spawn(move || worker.finish());
    let (ours, peer) = (collect(ours), collect(peer));
    let joined = |handle: thread::JoinHandle<Result<BTreeMap<String, Verdict>>>| {
        handle
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
    };
    let (ours, peer) = (joined(ours)?, joined(peer)?);
    Ok(Report::new(&names, ours, peer, &known))
}

/// The programs that are there, of those that are wanted.
fn names(options: &Options) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(&options.programs)
        .with_context(|| format!("programs in {}", options.programs.display()))?;
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry
            .ok()?
            .file_name()
            .to_str()?
            .strip_prefix("t-")
            .map(str::to_owned)
    };
    let mut all: Vec<String> = entries.filter_map(name).collect();
    all.sort_unstable();
    if options.names.is_empty() {
        ensure!(
            !all.is_empty(),
            "no programs in {}",
            options.programs.display()
        );
        return Ok(all);
    }
    let missing = options.names.iter().find(|name| !all.contains(name));
    ensure!(missing.is_none(), "no program {missing:?}");
    Ok(options.names.clone())
}
