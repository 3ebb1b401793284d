//! Restart policies, back-off, and init containers that fail.

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Cluster:
        crash_loop_waits_ten_seconds_and_then_twenty,
        exit_codes_and_phases_follow_the_restart_policy,
        failing_init_container_with_never_starts_no_app_container,
        init_containers_run_in_order_each_to_completion,
    ]
}

fn crash_loop_waits_ten_seconds_and_then_twenty(space: &Space<'_>) -> Result<()> {
    space.apply(&pod("crash").with(testapp("main", "crash 3")).manifest())?;
    space.until_pod("crash", "in back-off", 20, |p| {
        cluster::waiting(p, "main") == "CrashLoopBackOff"
    })?;
    space.until_event(
        "crash",
        &["BackOff", "Back-off restarting failed container main"],
        20,
    )?;
    // Each run is read in the back-off that follows it, which lasts; the run itself is over in a moment. A kubelet may
    // take a minute from telling of the end to telling of the back-off. One that is created and has yet to start is
    // counted already, while the last end is still that of the run before.
    let mut runs = Vec::new();
    for restart in 1..=3 {
        let pod = space.until_pod("crash", "over again", 45, |p| {
            cluster::restarts(p, "main") == restart
                && last_run(p).is_some_and(|run| runs.last() != Some(&run))
                && !cluster::is_running(p, "main")
        })?;
        ensure!(
            cluster::ended(&pod, "main") == Some((3, "Error")),
            "{}",
            cluster::describe(&pod)
        );
        runs.push(last_run(&pod).context("no times")?);
    }
    let pauses: Vec<i64> = runs.windows(2).map(|run| run[1].0 - run[0].1).collect();
    // The status has whole seconds.
    ensure!(
        (9..=12).contains(&pauses[0]) && (19..=22).contains(&pauses[1]),
        "pauses of {pauses:?} s"
    );
    Ok(())
}

/// Start and end of the last run that has ended, in seconds since the epoch.
fn last_run(pod: &k8s_openapi::api::core::v1::Pod) -> Option<(i64, i64)> {
    let status = cluster::container(pod, "main")?;
    let now = status
        .state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let before = status
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let last = now.or(before)?;
    let (started, finished) = (last.started_at.as_ref()?, last.finished_at.as_ref()?);
    Some((started.0.as_second(), finished.0.as_second()))
}

fn exit_codes_and_phases_follow_the_restart_policy(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("fails")
            .restart("Never")
            .with(testapp("main", "crash 42"))
            .manifest(),
    )?;
    space.apply(
        &pod("succeeds")
            .restart("OnFailure")
            .with(testapp("main", "crash 0"))
            .manifest(),
    )?;
    space.apply(
        &pod("missing")
            .restart("Never")
            .with(shell("main", "").set("command", vec!["/none"]))
            .manifest(),
    )?;
    let fails = space.until_phase("fails", "Failed")?;
    ensure!(
        cluster::ended(&fails, "main") == Some((42, "Error")),
        "{}",
        cluster::describe(&fails)
    );
    let succeeds = space.until_phase("succeeds", "Succeeded")?;
    ensure!(
        cluster::ended(&succeeds, "main") == Some((0, "Completed")),
        "{}",
        cluster::describe(&succeeds)
    );
    let missing = space.until_phase("missing", "Failed")?;
    let (code, _) = cluster::ended(&missing, "main").context("not ended")?;
    ensure!(matches!(code, 127 | 128), "{}", cluster::describe(&missing));
    space.until_event("missing", &["Failed", "/none"], 10)?;
    Ok(())
}

fn failing_init_container_with_never_starts_no_app_container(space: &Space<'_>) -> Result<()> {
    let pod = pod("init-fails")
        .restart("Never")
        .init(testapp("first", "crash 5"))
        .init(testapp("second", "print two"))
        .with(testapp("main", "serve"));
    space.apply(&pod.manifest())?;
    let pod = space.until_phase("init-fails", "Failed")?;
    let line = space.kubectl("get pod init-fails --no-headers")?;
    ensure!(line.contains("Init:Error"), "kubectl says {line:?}");
    ensure!(
        cluster::ended(&pod, "first") == Some((5, "Error")),
        "{}",
        cluster::describe(&pod)
    );
    for never in ["second", "main"] {
        ensure!(
            cluster::waiting(&pod, never) == "PodInitializing",
            "{}",
            cluster::describe(&pod)
        );
        ensure!(
            cluster::container_id(&pod, never).is_empty(),
            "{never} was made"
        );
    }
    let events = space.events("init-fails")?;
    ensure!(
        !events
            .iter()
            .any(|e| e.contains("Container started: main") || e.contains("container main")),
        "{events:?}"
    );
    Ok(())
}

fn init_containers_run_in_order_each_to_completion(space: &Space<'_>) -> Result<()> {
    let line = |text: &str| format!("sleep 0.3; echo {text} >> /shared/order");
    let pod = pod("ordered")
        .volume("shared", serde_json::json!({ "emptyDir": {} }))
        .init(shell("one", &line("one")).mount("shared", "/shared"))
        .init(shell("two", &line("two")).mount("shared", "/shared"))
        .with(shell("main", "cat /shared/order; sleep 1000").mount("shared", "/shared"));
    space.apply(&pod.manifest())?;
    let pod = space.until_ready("ordered")?;
    let log = space.until("the order", 10, || {
        let log = space.kubectl("logs ordered -c main")?;
        ensure!(log.lines().count() == 2, "{log:?}");
        Ok(log)
    })?;
    ensure!(log == "one\ntwo\n", "the order was {log:?}");
    ensure!(
        cluster::condition(&pod, "Initialized") == "True",
        "{}",
        cluster::describe(&pod)
    );
    ensure!(
        cluster::ended(&pod, "one") == Some((0, "Completed")),
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}
