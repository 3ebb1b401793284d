//! `kubectl debug`: a container that is put into a pod which runs, beside one that has no shell.

use std::io::Write as _;

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![
        Cluster:
        debug_sees_the_processes_files_and_network_of_its_target,
        debug_ends_with_its_target_and_is_not_started_again,
    ]
}

/// The pod to look into: "main" has nothing but a server, "other" is beside it.
fn start(space: &Space<'_>, name: &str) -> Result<()> {
    let pod = pod(name)
        .with(testapp("main", "serve 8080"))
        .with(shell("other", "sleep 4321"));
    space.apply(&pod.manifest())?;
    space.until_ready(name).map(drop)
}

/// The beginning of a command that looks into "main" by a container of this name.
fn debug(space: &Space<'_>, pod: &str, name: &str) -> String {
    let image = format!("{}/busybox:1", space.cluster().registry());
    format!("debug {pod} --image={image} --target=main --container={name}")
}

fn debug_sees_the_processes_files_and_network_of_its_target(space: &Space<'_>) -> Result<()> {
    start(space, "quiet")?;
    let line = format!("{} -i -- sh", debug(space, "quiet", "hand"));
    let mut hand = space.kubectl_streams(&line)?;
    let mut stdin = hand.stdin.take().context("stdin")?;
    stdin.write_all(
        b"tr '\\0' ' ' < /proc/1/cmdline; echo; ps; ls /proc/1/root; wget -qO- http://127.0.0.1:8080/\nexit 3\n",
    )?;
    drop(stdin);
    let output = hand.wait_with_output()?;
    let seen = String::from_utf8(output.stdout)?;
    for part in ["/testapp serve 8080 \n", "\ntestapp\n", "\nhello\n"] {
        ensure!(seen.contains(part), "no {part:?} in {seen:?}");
    }
    ensure!(!seen.contains("4321"), "the other container's: {seen:?}");
    let pod = space.until_pod("quiet", "debugged", 10, |pod| {
        cluster::ended(pod, "hand") == Some((3, "Error"))
    })?;
    ensure!(cluster::is_ready(&pod) && cluster::restarts(&pod, "main") == 0);
    let said = space.kubectl("logs quiet -c hand")?;
    ensure!(said.contains("hello\n"), "{said:?}");
    Ok(())
}

fn debug_ends_with_its_target_and_is_not_started_again(space: &Space<'_>) -> Result<()> {
    start(space, "ended")?;
    space.kubectl(&format!("{} -- sleep 1234", debug(space, "ended", "eye")))?;
    space.until_pod("ended", "debugged", 30, |pod| {
        cluster::is_running(pod, "eye")
    })?;
    let seen = space.kubectl("exec ended -c eye -- ps")?;
    ensure!(
        seen.contains("/testapp serve") && seen.contains("sleep 1234"),
        "{seen:?}"
    );
    space.kubectl("exec ended -c eye -- kill 1")?;
    space.until_pod("ended", "whole again", 30, |pod| {
        cluster::ended(pod, "eye").is_some_and(|(code, _)| code == 137)
            && cluster::restarts(pod, "main") == 1
            && cluster::is_ready(pod)
    })?;
    let pod = space.pod("ended")?;
    ensure!(
        cluster::restarts(&pod, "eye") == 0,
        "{}",
        cluster::describe(&pod)
    );
    ensure!(
        !cluster::is_running(&pod, "eye"),
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}
