//! The real kubectl, in the namespace of a story.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Space;
use crate::process::patience;

impl Space<'_> {
    /// Applies a manifest, with `REGISTRY` in it replaced.
    ///
    /// # Errors
    /// When kubectl fails.
    pub fn apply(&self, manifest: &Value) -> Result<()> {
        let text = manifest
            .to_string()
            .replace("REGISTRY", &self.cluster.registry);
        let mut command = self.command("apply -f -")?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        child
            .stdin
            .take()
            .context("stdin of kubectl")?
            .write_all(text.as_bytes())?;
        succeeded("apply", child.wait_with_output()?).map(drop)
    }

    /// Runs kubectl in this namespace and returns what it prints. The line is split at blanks.
    ///
    /// # Errors
    /// When it fails, with what it wrote to standard error.
    pub fn kubectl(&self, line: &str) -> Result<String> {
        succeeded(line, self.command(line)?.output()?)
    }

    /// Runs kubectl with what has blanks after `--`, e.g. a command for exec.
    ///
    /// # Errors
    /// When it fails.
    pub fn kubectl_with(&self, line: &str, rest: &[&str]) -> Result<String> {
        succeeded(line, self.command(line)?.args(rest).output()?)
    }

    /// Runs kubectl, which is to fail, and returns its exit code and standard error.
    ///
    /// # Errors
    /// When it succeeds.
    pub fn kubectl_fails(&self, line: &str, rest: &[&str]) -> Result<(i32, String)> {
        let output = self.command(line)?.args(rest).output()?;
        let out = String::from_utf8_lossy(&output.stdout);
        ensure!(
            !output.status.success(),
            "kubectl {line} {rest:?} succeeded: {out}"
        );
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.code().unwrap_or(-1), errors))
    }

    /// Starts kubectl with its output piped, for `logs -f` and the like.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn kubectl_streams(&self, line: &str) -> Result<Child> {
        let mut command = self.command(line)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = self.cluster.kubectl()?;
        command
            .arg("--namespace")
            .arg(&self.namespace)
            .args(line.split_whitespace().map(patient));
        Ok(command)
    }
}

/// A word of a command line; `--timeout=60s` as [`patience`] makes it.
fn patient(word: &str) -> String {
    let seconds = word
        .strip_prefix("--timeout=")
        .and_then(|rest| rest.strip_suffix('s')?.parse().ok());
    match seconds {
        Some(seconds) => {
            let patience = patience(Duration::from_secs(seconds));
            format!("--timeout={}s", patience.as_secs())
        }
        None => word.to_owned(),
    }
}

fn succeeded(line: &str, output: Output) -> Result<String> {
    if !output.status.success() {
        bail!(
            "kubectl {line}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
