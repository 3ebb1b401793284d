//! kill -9 of the agent at any time harms no container; the next agent goes on from what it finds.

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Node:
        agent_killed_while_pulling_pulls_again,
        agent_killed_during_init_goes_on_with_the_same_container,
        agent_killed_while_pods_run_restarts_none_of_them,
        exit_while_no_agent_runs_is_reported_by_the_next,
        agent_killed_while_a_pod_ends_finishes_the_deletion,
        pod_deleted_while_no_agent_runs_goes_with_the_next,
    ]
}

fn restart_agent(space: &Space<'_>) -> Result<()> {
    let node = space.lab()?.node("n1");
    node.kill()?;
    node.start()
}

fn agent_killed_while_pulling_pulls_again(space: &Space<'_>) -> Result<()> {
    space.lab()?.pause_registry()?;
    let pulls = testapp("main", "serve")
        .image("agnhost:2")
        .set("args", vec!["netexec"]);
    space.apply(
        &pod("pulls")
            .on("n1")
            .with(pulls.set("imagePullPolicy", "Always"))
            .manifest(),
    )?;
    space.until_event("pulls", &["Pulling", "agnhost:2"], 20)?;
    restart_agent(space)?;
    space.lab()?.resume_registry()?;
    let pod = space.until_ready("pulls")?;
    ensure!(
        cluster::restarts(&pod, "main") == 0,
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}

fn agent_killed_during_init_goes_on_with_the_same_container(space: &Space<'_>) -> Result<()> {
    let slow = pod("slow")
        .on("n1")
        .volume("runs", serde_json::json!({ "emptyDir": {} }))
        .init(shell("first", "echo run >> /runs/first; sleep 3").mount("runs", "/runs"))
        .init(shell("second", "echo run >> /runs/second").mount("runs", "/runs"))
        .with(shell("main", "cat /runs/*; sleep 1000").mount("runs", "/runs"));
    space.apply(&slow.manifest())?;
    let before = space.until_pod("slow", "in its first init container", 20, |p| {
        cluster::is_running(p, "first")
    })?;
    restart_agent(space)?;
    let after = space.until_ready("slow")?;
    ensure!(cluster::container_id(&before, "first") == cluster::container_id(&after, "first"));
    let log = space.kubectl("logs slow -c main")?;
    ensure!(
        log == "run\nrun\n",
        "each init container is to run once, not {log:?}"
    );
    Ok(())
}

fn agent_killed_while_pods_run_restarts_none_of_them(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("web")
            .on("n1")
            .with(testapp("main", "serve"))
            .with(testapp("side", "catch"))
            .manifest(),
    )?;
    let before = space.until_ready("web")?;
    let pids = space.lab()?.node("n1").processes()?;
    for _ in 0..3 {
        restart_agent(space)?;
    }
    space
        .lab()?
        .node("n1")
        .wait_ready(std::time::Duration::from_secs(30))?;
    space.apply(
        &pod("next")
            .on("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    space.until_ready("next")?;
    let after = space.until_ready("web")?;
    for name in ["main", "side"] {
        ensure!(
            cluster::container_id(&before, name) == cluster::container_id(&after, name),
            "{name} is another"
        );
        ensure!(cluster::restarts(&after, name) == 0, "{name} was restarted");
    }
    ensure!(
        cluster::ip(&before) == cluster::ip(&after),
        "the address changed"
    );
    ensure!(
        pids.len() >= 3 && pids.is_subset(&space.lab()?.node("n1").processes()?),
        "a process of {pids:?} has ended"
    );
    ensure!(space.kubectl("exec web -c main -- /testapp get http://127.0.0.1:8080/")? == "hello\n");
    Ok(())
}

fn exit_while_no_agent_runs_is_reported_by_the_next(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("ends")
            .on("n1")
            .restart("Never")
            .with(testapp("main", "crash 7 2000"))
            .manifest(),
    )?;
    space.until_pod("ends", "running", 20, |p| cluster::is_running(p, "main"))?;
    let node = space.lab()?.node("n1");
    let running = node.processes()?;
    node.kill()?;
    space.until("the container's end", 20, || {
        ensure!(
            !running.is_subset(&node.processes()?),
            "all of {running:?} run"
        );
        Ok(())
    })?;
    node.start()?;
    let pod = space.until_phase("ends", "Failed")?;
    ensure!(
        cluster::ended(&pod, "main") == Some((7, "Error")),
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}

fn agent_killed_while_a_pod_ends_finishes_the_deletion(space: &Space<'_>) -> Result<()> {
    let stubborn = pod("stubborn")
        .on("n1")
        .set("terminationGracePeriodSeconds", 4);
    space.apply(&stubborn.with(testapp("main", "catch ignore")).manifest())?;
    space.until_ready("stubborn")?;
    space.kubectl("delete pod stubborn --wait=false")?;
    space.until_event("stubborn", &["Killing"], 10)?;
    restart_agent(space)?;
    space.until_no_pods(20)
}

fn pod_deleted_while_no_agent_runs_goes_with_the_next(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("left")
            .on("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    space.apply(
        &pod("forced")
            .on("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    space.until_all_ready(2, 30)?;
    let node = space.lab()?.node("n1");
    node.kill()?;
    space.kubectl("delete pod left --wait=false")?;
    space.kubectl("delete pod forced --force --grace-period=0")?;
    node.start()?;
    space.until_no_pods(20)
}
