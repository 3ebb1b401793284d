//! `hanok run`, `hanok image` and `hanok ps`: pods without any API server.

use std::fs;
use std::io::{BufRead as _, BufReader};

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::program::{hanok, hanok_in};
use hanok_e2e::runner::Story;
use hanok_e2e::{network, paths, stories};

use crate::stage::Stage;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        manifest_runs_in_the_foreground_and_leaves_nothing_behind,
        run_ends_with_its_pods_and_says_whether_they_succeeded,
    ]
}

/// The command line of a run.
fn args<'a>(flags: &'a [String], file: &'a str) -> Vec<&'a str> {
    let flags = flags.iter().map(String::as_str);
    std::iter::once("run").chain(flags).chain([file]).collect()
}

fn manifest_runs_in_the_foreground_and_leaves_nothing_behind(space: &Space<'_>) -> Result<()> {
    let stage = Stage::set(space, "run-hello")?;
    let flags = stage.flags("run0");
    let hello = paths::workspace()
        .join("deploy/examples/hello.yaml")
        .display()
        .to_string();
    let mut run = hanok_in(&stage.netns, &args(&flags, &hello))?;
    let mut lines = BufReader::new(run.stdout.take().context("stdout")?).lines();
    let ready = lines.find(|l| l.as_ref().map_or(true, |l| l.contains("hello is ready at")));
    let ready = ready.context("it ended before it was ready")??;
    let address = ready
        .split_whitespace()
        .find(|w| w.starts_with("10."))
        .context(ready.clone())?;

    let url = format!("http://{address}:8080/");
    let testapp = paths::testapp()?.display().to_string();
    let page = network::in_namespace(&stage.netns, &[&testapp, "get", &url])?;
    ensure!(page == "Hello from a hanok pod\n", "{page:?}");
    let listed = hanok(&["ps", "--run-dir", &stage.run_dir])?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(
        listed.contains("hello") && listed.contains("web"),
        "{listed}"
    );

    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(run.id())?),
        nix::sys::signal::Signal::SIGINT,
    )?;
    let rest: Vec<String> = lines.collect::<Result<_, _>>()?;
    ensure!(
        rest.iter().any(|l| l.contains("sandbox.cni")),
        "no timeline in {rest:#?}"
    );
    let status = run.wait()?;
    ensure!(status.code().is_some(), "it died: {status}");
    stage.is_clear(&[])
}

fn run_ends_with_its_pods_and_says_whether_they_succeeded(space: &Space<'_>) -> Result<()> {
    let stage = Stage::set(space, "run-ends")?;
    let flags = stage.flags("run0");
    for (code, success) in [("0", true), ("3", false)] {
        let file = format!("{}/pod.yaml", stage.state);
        fs::write(
            &file,
            format!(
                "{{ apiVersion: v1, kind: Pod, metadata: {{ name: ends }}, spec: {{ restartPolicy: Never, containers: \
                 [ {{ name: c, image: \"hanok.local/testapp:1\", imagePullPolicy: Never, args: [crash, \"{code}\"] }} ] }} }}"
            ),
        )?;
        let output = hanok_in(&stage.netns, &args(&flags, &file))?.wait_with_output()?;
        ensure!(
            output.status.success() == success,
            "exit code {code} gave {output:?}"
        );
        stage.is_clear(&[])?;
    }
    Ok(())
}
