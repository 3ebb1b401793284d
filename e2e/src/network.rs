//! Network namespaces and links of a lab, by `ip` from iproute2.
//!
//! Never `ip netns exec`: it mounts a fresh /sys and so hides the cgroups. `ip -n` only changes the namespace
//! of its netlink socket.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::process::run;

/// Runs several `ip` commands, one a line, in a namespace ("" for the host's). Empty lines are skipped.
///
/// # Errors
/// At the first command that fails.
pub fn ip_batch(netns: &str, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if !netns.is_empty() {
        command.args(["-n", netns]);
    }
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start ip (package iproute2)")?;
    child
        .stdin
        .take()
        .context("stdin of ip")?
        .write_all(lines.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "ip in namespace {netns:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Names of the network namespaces pinned below /run/netns that begin with a prefix.
pub fn namespaces(prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    names.filter(|n| n.starts_with(prefix)).collect()
}

/// Makes a namespace with its loopback up and forwarding on.
///
/// # Errors
/// When `ip` or `nsenter` fails.
pub fn add_namespace(name: &str) -> Result<()> {
    run("ip", &["netns", "add", name])?;
    ip_batch(name, "link set lo up\n")?;
    // /proc/sys/net shows the namespace of whoever opens it.
    in_namespace(
        name,
        &["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
    )?;
    Ok(())
}

/// Removes a namespace, and with it every link, route and rule in it. Absent is success.
///
/// # Errors
/// When `ip` fails.
pub fn remove_namespace(name: &str) -> Result<()> {
    if std::path::Path::new("/run/netns").join(name).exists() {
        run("ip", &["netns", "del", name])?;
    }
    Ok(())
}

/// Removes a link of the host's namespace. Absent is success, and so is one that goes meanwhile, as an end of a pair
/// does some time after the namespace of the other.
///
/// # Errors
/// When `ip` fails.
pub fn remove_host_link(name: &str) -> Result<()> {
    let link = std::path::Path::new("/sys/class/net").join(name);
    if !link.exists() {
        return Ok(());
    }
    match run("ip", &["link", "del", name]) {
        Err(e) if link.exists() => Err(e),
        _ => Ok(()),
    }
}

/// Runs a program in a network namespace and returns its standard output.
///
/// # Errors
/// When it fails.
pub fn in_namespace(netns: &str, argv: &[&str]) -> Result<String> {
    let net = format!("--net=/run/netns/{netns}");
    let mut args = vec![net.as_str(), "--"];
    args.extend_from_slice(argv);
    run("nsenter", &args)
}

/// Process ids of every process whose network namespace is this one.
pub fn processes_in(netns: &str) -> Vec<i32> {
    use std::os::linux::fs::MetadataExt as _;
    let Ok(wanted) = std::fs::metadata(format!("/run/netns/{netns}")) else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        std::fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|m| m.st_ino() == wanted.st_ino() && m.st_dev() == wanted.st_dev())
    })
    .collect()
}
