//! `hanok` run as a user would, for stories about its commands.

use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use crate::paths;

/// Runs `hanok`, which is to fail at once, and returns its one line on standard error.
///
/// # Errors
/// When it succeeds, panics, is silent, or says more than a line.
pub fn hanok_refuses(args: &[&str]) -> Result<String> {
    let output = hanok(args)?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = || format!("hanok {}: {errors}", args.join(" "));
    ensure!(!output.status.success(), "succeeded: {}", line());
    ensure!(
        output.status.code().is_some(),
        "died of a signal: {}",
        line()
    );
    ensure!(!errors.contains("panicked"), "panicked: {}", line());
    ensure!(
        errors.lines().count() == 1,
        "does not say one line: {}",
        line()
    );
    Ok(errors)
}

/// Runs `hanok` for at most 20 seconds.
///
/// # Errors
/// When it cannot be started.
pub fn hanok(args: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command
        .arg("20")
        .arg(paths::hanok()?)
        .args(args)
        .stdin(Stdio::null())
        .env_remove("RUST_LOG");
    command.output().context("run hanok")
}

/// Starts `hanok` in a network namespace with its output piped. It is interrupted after a minute; signals
/// to the child reach it.
///
/// # Errors
/// When it cannot be started.
pub fn hanok_in(netns: &str, args: &[&str]) -> Result<Child> {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{netns}"))
        .args(["--", "timeout", "--signal=INT", "60"])
        .arg(paths::hanok()?)
        .args(args);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run hanok")
}
