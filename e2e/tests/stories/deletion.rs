//! Deletion: TERM, the grace period, KILL.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::manifest::{pod, testapp};
use hanok_e2e::process::patience;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Cluster:
        deleted_pod_is_told_by_term_and_goes_as_soon_as_it_ends,
        pod_that_ignores_term_is_killed_after_its_grace,
        pod_deleted_while_it_starts_goes_as_well,
        forced_deletion_leaves_nothing_running,
    ]
}

fn deleted_pod_is_told_by_term_and_goes_as_soon_as_it_ends(space: &Space<'_>) -> Result<()> {
    let polite = pod("polite")
        .set("terminationGracePeriodSeconds", 30)
        .with(testapp("main", "catch"));
    space.apply(&polite.manifest())?;
    space.until_ready("polite")?;
    let follow = space.kubectl_streams("logs -f polite")?;
    space.until("the first line", 10, || {
        ensure!(space.kubectl("logs polite")?.contains("waiting"));
        Ok(())
    })?;
    let took = time(|| space.kubectl("delete pod polite"))?;
    ensure!(took < patience(Duration::from_secs(5)), "it took {took:?}");
    let log = String::from_utf8(follow.wait_with_output()?.stdout)?;
    ensure!(log.contains("caught SIGTERM"), "it said {log:?}");
    space.until_event("polite", &["Killing", "Stopping container main"], 10)?;
    Ok(())
}

fn pod_that_ignores_term_is_killed_after_its_grace(space: &Space<'_>) -> Result<()> {
    let stubborn = pod("stubborn")
        .set("terminationGracePeriodSeconds", 3)
        .with(testapp("main", "catch ignore"));
    space.apply(&stubborn.manifest())?;
    space.until_ready("stubborn")?;
    let took = time(|| space.kubectl("delete pod stubborn"))?;
    ensure!(
        took.as_secs() >= 3 && took < patience(Duration::from_secs(6)),
        "a grace of 3 s took {took:?}"
    );
    Ok(())
}

fn pod_deleted_while_it_starts_goes_as_well(space: &Space<'_>) -> Result<()> {
    for n in 0..5 {
        let name = format!("brief-{n}");
        space.apply(
            &pod(&name)
                .init(testapp("first", "sleep 200"))
                .with(testapp("main", "serve"))
                .manifest(),
        )?;
        space.kubectl(&format!("delete pod {name} --wait=false"))?;
    }
    space.until_no_pods(20)
}

fn forced_deletion_leaves_nothing_running(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("forced")
            .with(testapp("main", "catch ignore"))
            .manifest(),
    )?;
    space.until_ready("forced")?;
    // The object goes at once; that the process goes too is seen by the look for leaks after the story.
    space.kubectl("delete pod forced --force --grace-period=0")?;
    space.until_no_pods(5)
}

fn time<T>(act: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let began = Instant::now();
    act()?;
    Ok(began.elapsed())
}
