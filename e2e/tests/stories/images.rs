//! Images that are missing, and what an image says about its process.

use std::io::{BufRead as _, BufReader};

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![Cluster:
        missing_image_backs_off_until_the_pod_names_another,
        malformed_image_name_is_told_and_never_pulled,
        image_gives_user_directory_environment_and_layers,
        pull_policy_never_needs_the_image_to_be_there,
    ]
}

fn missing_image_backs_off_until_the_pod_names_another(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("typo")
            .with(testapp("main", "serve").image("tetsapp:1"))
            .manifest(),
    )?;
    space.until_pod("typo", "refused", 20, |p| {
        cluster::waiting(p, "main") == "ErrImagePull"
    })?;
    space.until_event("typo", &["Failed", "tetsapp:1"], 10)?;
    space.until_pod("typo", "in back-off", 20, |p| {
        cluster::waiting(p, "main") == "ImagePullBackOff"
    })?;
    space.until_event("typo", &["BackOff", "Back-off pulling image"], 10)?;
    space.apply(&pod("typo").with(testapp("main", "serve")).manifest())?;
    let pod = space.until_ready("typo")?;
    ensure!(
        cluster::restarts(&pod, "main") == 0,
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}

fn malformed_image_name_is_told_and_never_pulled(space: &Space<'_>) -> Result<()> {
    let bad = testapp("main", "serve").set("image", "UPPER/case:::1");
    space.apply(&pod("malformed").with(bad).manifest())?;
    space.until_pod("malformed", "refused", 20, |p| {
        cluster::waiting(p, "main") == "InvalidImageName"
    })?;
    space.until_event("malformed", &["InspectFailed", "UPPER/case:::1"], 10)?;
    Ok(())
}

fn image_gives_user_directory_environment_and_layers(space: &Space<'_>) -> Result<()> {
    let look =
        "id -u; pwd; echo $FROM_IMAGE; cat /opt/layer; ls /opt/old /etc/motd 2>&1 | grep -c gone";
    let container = shell("main", look).image("nonroot:1");
    space.apply(&pod("says").restart("Never").with(container).manifest())?;
    space.until_phase("says", "Failed")?;
    let log = space.kubectl("logs says")?;
    ensure!(
        log == "1234\n/work\nyes\nthree\n0\n",
        "the container sees {log:?}"
    );
    // Its stop signal is USR1, which ends the program as TERM would.
    space.apply(
        &pod("stops")
            .with(testapp("main", "catch").image("nonroot:1"))
            .manifest(),
    )?;
    space.until_ready("stops")?;
    let mut follow = space.kubectl_streams("logs -f stops")?;
    let mut log = BufReader::new(follow.stdout.take().context("stdout")?);
    log.read_line(&mut String::new())?;
    space.kubectl("delete pod stops")?;
    let log = std::io::read_to_string(log)?;
    follow.wait()?;
    ensure!(log.contains("caught SIGUSR1"), "it was stopped by {log:?}");
    Ok(())
}

fn pull_policy_never_needs_the_image_to_be_there(space: &Space<'_>) -> Result<()> {
    let absent = testapp("main", "serve")
        .image("never-seen:1")
        .set("imagePullPolicy", "Never");
    space.apply(&pod("absent").with(absent).manifest())?;
    space.until_pod("absent", "refused", 20, |p| {
        cluster::waiting(p, "main") == "ErrImageNeverPull"
    })?;
    let always = testapp("main", "serve").set("imagePullPolicy", json!("Always"));
    space.apply(&pod("always").with(always).manifest())?;
    space.until_ready("always")?;
    space.until_event("always", &["Pulled"], 10)?;
    Ok(())
}
