//! The end of a lab: every process, mount, cgroup, namespace, link and file of it, found by name.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::Signal;

use super::control_plane::STOP_ORDER;
use super::{Lab, cgroup};
use crate::process::{Process, start_time};
use crate::{network, paths};

/// Every machine of a lab.
const MACHINES: [&str; 4] = ["n1", "n2", "peer", "cp"];

/// Takes a lab down; every step runs, whatever the others say.
pub(super) fn down(lab: &Lab) -> Result<()> {
    let mut errors = Vec::new();
    let mut note = |result: Result<()>| {
        if let Err(e) = result {
            errors.push(format!("{e:#}"));
        }
    };
    stop_recorded(lab, &mut note);
    // What the nodes started: shims in the nodes' network namespaces, containers in the nodes' cgroups.
    for machine in MACHINES {
        let mut pids = network::processes_in(&lab.netns(machine));
        let groups = cgroup::of_machine(lab, machine);
        pids.extend(groups.iter().flat_map(|dir| cgroup::processes(dir)));
        for pid in pids {
            note(kill(pid));
        }
        for group in groups {
            note(remove_cgroup(&group));
        }
    }
    note(cgroup::remove_made(lab));
    note(lab.peer().restore_machine());
    for dir in [lab.dir(), &lab.run_dir()] {
        note(unmount_below(dir));
    }
    for netns in network::namespaces(&format!("{}-", lab.prefix())) {
        note(network::remove_namespace(&netns));
    }
    note(network::remove_host_link(&lab.prefix()));
    note(keep_logs(lab));
    for dir in [lab.dir(), &lab.run_dir()] {
        note(remove_unmounted(dir));
    }
    match errors.as_slice() {
        [] => Ok(()),
        errors => bail!(
            "lab {} is not wholly down: {}",
            lab.prefix(),
            errors.join("; ")
        ),
    }
}

fn stop_recorded(lab: &Lab, note: &mut impl FnMut(Result<()>)) {
    let recorded = lab.processes().list();
    let others = recorded
        .iter()
        .map(|p| p.name.as_str())
        .filter(|n| !STOP_ORDER.contains(n));
    for name in others.chain(STOP_ORDER) {
        // Nothing of a lab's state survives it, so nobody needs time to save any.
        note(
            lab.processes()
                .stop(name, Signal::KILL, Duration::from_secs(10)),
        );
    }
}

fn kill(pid: i32) -> Result<()> {
    let Ok(started) = start_time(pid) else {
        return Ok(());
    };
    let process = Process {
        name: "a process of the lab".into(),
        pid,
        started,
    };
    process.end(Signal::KILL, Duration::from_secs(10))
}

/// Removes a cgroup as soon as the kernel has let go of its last process.
fn remove_cgroup(dir: &Path) -> Result<()> {
    crate::process::wait_for("an empty cgroup", Duration::from_secs(5), || {
        cgroup::remove(dir)
    })
}

/// Unmounts everything below a directory, the newest mount first.
fn unmount_below(dir: &Path) -> Result<()> {
    for mount in mounts_below(dir).iter().rev() {
        nix::mount::umount2(mount.as_str(), nix::mount::MntFlags::MNT_DETACH)
            .map_err(|e| anyhow::anyhow!("unmount {mount}: {e}"))?;
    }
    Ok(())
}

/// Mount points below a directory, oldest first.
pub(super) fn mounts_below(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .filter(|p| Path::new(p).starts_with(dir))
        .map(str::to_owned)
        .collect()
}

/// Moves the logs aside, where the next lab of this number replaces them.
fn keep_logs(lab: &Lab) -> Result<()> {
    let logs = lab.dir().join("logs");
    if !logs.exists() {
        return Ok(());
    }
    let kept = paths::target().join("logs").join(lab.prefix());
    remove_dir(&kept)?;
    fs::create_dir_all(kept.parent().unwrap_or(&kept))?;
    fs::rename(lab.dir().join("audit.log"), logs.join("audit.log")).ok();
    fs::rename(&logs, &kept)?;
    Ok(())
}

/// Removes the lab's directory, unless something is still mounted in it that would be emptied, too.
fn remove_unmounted(dir: &Path) -> Result<()> {
    let mounts = mounts_below(dir);
    anyhow::ensure!(mounts.is_empty(), "{mounts:?} are still mounted");
    remove_dir(dir)
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(anyhow::Error::new(e).context(format!("remove {}", dir.display())))
        }
        _ => Ok(()),
    }
}
