//! A worker on the outside: the process, the directory it works in, its cgroups, and what is left of it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::Options;
use super::inside::{RESULTS, Task};
use super::report::Known;
use super::verdict::Verdict;
use crate::lab::cgroup;

/// A runtime under test.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    dir: TempDir,
    cgroups: Vec<PathBuf>,
}

impl Worker {
    /// Starts it. `runtime` is a hanok, or the name of another runtime.
    pub(super) fn start(
        name: &str,
        runtime: &OsStr,
        options: &Options,
        names: &[String],
        known: &Known,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hanok-oci-").tempdir()?;
        let group = dir.path().file_name().unwrap_or_default().to_owned();
        let mut cgroups = Vec::new();
        for hierarchy in cgroup::hierarchies()? {
            let cgroup = hierarchy.own().join(&group);
            fs::create_dir(&cgroup).with_context(|| cgroup.display().to_string())?;
            cgroup::inherit_cpuset(&cgroup)?;
            cgroups.push(cgroup);
        }
        let task = Task {
            runtime: command(runtime, dir.path())?,
            programs: std::path::absolute(&options.programs)?,
            names: names.to_vec(),
            excused: known.names(),
            dir: dir.path().to_owned(),
            cgroups: cgroups.clone(),
        };
        let file = dir.path().join("task.json");
        fs::write(&file, serde_json::to_vec(&task)?)?;
        let child = Command::new(std::env::current_exe()?)
            .args(["oci-conformance-worker".as_ref(), file.as_os_str()])
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("worker {name}"))?;
        Ok(Self {
            child,
            dir,
            cgroups,
        })
    }

    /// Waits for it, clears up and reads what it found.
    pub(super) fn finish(mut self) -> Result<BTreeMap<String, Verdict>> {
        let status = self.child.wait();
        for cgroup in &self.cgroups {
            remove_tree(cgroup)?;
        }
        ensure!(status?.success(), "a worker failed");
        let results = fs::read(self.dir.path().join(RESULTS)).context("results")?;
        Ok(serde_json::from_slice(&results)?)
    }
}

/// A program that is called as a runtime is: with the command's words alone, and a root directory of its own.
fn command(runtime: &OsStr, dir: &Path) -> Result<PathBuf> {
    let name = Path::new(runtime).file_name().unwrap_or_default();
    let path = dir.join("runtime");
    let root = dir.join("containers");
    let subcommand = if name == "hanok" { " oci" } else { "" };
    let script = format!(
        "#!/bin/sh\nexec '{}'{subcommand} --root '{}' \"$@\"\n",
        Path::new(runtime).display(),
        root.display()
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

/// Removes cgroups, the deepest first. The programs leave empty ones.
fn remove_tree(cgroup: &Path) -> Result<()> {
    for entry in fs::read_dir(cgroup).with_context(|| cgroup.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup).with_context(|| format!("remove {}", cgroup.display()))
}
