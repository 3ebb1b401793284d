//! `kubectl logs` and `kubectl exec`, through the API server and the kubelet API.

use std::io::{BufRead as _, BufReader, Write as _};

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::process::patience;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![
        Cluster:
        logs_are_whole_followed_and_kept_of_the_previous_run,
        following_a_log_ends_with_the_run_that_is_followed,
        exec_carries_streams_and_exit_code,
        logs_of_a_flood_are_complete;
        Node:
        kubelet_port_turns_strangers_away,
    ]
}

fn logs_are_whole_followed_and_kept_of_the_previous_run(space: &Space<'_>) -> Result<()> {
    let script =
        "test -e /data/ran && { echo second; sleep 1000; }; touch /data/ran; echo first; exit 1";
    let twice = pod("twice")
        .volume("data", serde_json::json!({ "emptyDir": {} }))
        .with(shell("main", script).mount("data", "/data"));
    space.apply(&twice.manifest())?;
    space.until_pod("twice", "restarted", 30, |p| {
        cluster::restarts(p, "main") == 1 && cluster::is_running(p, "main")
    })?;
    space.until("the second run's line", 10, || {
        let log = space.kubectl("logs twice")?;
        ensure!(log == "second\n", "{log:?}");
        Ok(())
    })?;
    ensure!(space.kubectl("logs twice --previous")? == "first\n");

    space.apply(
        &pod("ticks")
            .with(shell(
                "main",
                "for i in 1 2 3 4 5; do echo $i; sleep 0.2; done; sleep 1000",
            ))
            .manifest(),
    )?;
    space.until_ready("ticks")?;
    let mut follow = space.kubectl_streams("logs -f ticks")?;
    let lines: Vec<String> = BufReader::new(follow.stdout.take().context("stdout")?)
        .lines()
        .take(5)
        .collect::<Result<_, _>>()?;
    follow.kill()?;
    follow.wait()?;
    ensure!(lines == ["1", "2", "3", "4", "5"], "followed {lines:?}");
    ensure!(space.kubectl("logs ticks --tail=2")? == "4\n5\n");
    let stamped = space.kubectl("logs ticks --timestamps --limit-bytes=40")?;
    ensure!(
        stamped.starts_with("20") && stamped.contains('T'),
        "{stamped:?}"
    );
    Ok(())
}

fn following_a_log_ends_with_the_run_that_is_followed(space: &Space<'_>) -> Result<()> {
    let line = "echo begin; sleep 2; echo end; exit 1";
    space.apply(&pod("loops").with(shell("main", line)).manifest())?;
    space.until_pod("loops", "running", 20, |p| cluster::is_running(p, "main"))?;
    let followed = |what: &str| {
        let began = std::time::Instant::now();
        let out = space.kubectl_streams("logs -f loops")?.wait_with_output()?;
        let text = String::from_utf8(out.stdout)?;
        ensure!(
            out.status.success() && text == "begin\nend\n",
            "{what}: {text:?}"
        );
        // The run after the next is ten seconds later.
        let took = began.elapsed();
        let most = patience(std::time::Duration::from_secs(7));
        ensure!(took < most, "{what}: it took {took:?}");
        Ok(())
    };
    followed("of a run that ends")?;
    let pod = space.until_pod("loops", "in back-off", 10, |p| {
        cluster::waiting(p, "main") == "CrashLoopBackOff"
    })?;
    // The first restart waits for nothing.
    ensure!(cluster::restarts(&pod, "main") == 1);
    followed("of one that has ended")
}

fn logs_of_a_flood_are_complete(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("flood")
            .restart("Never")
            .with(testapp("main", "flood 20000 100"))
            .manifest(),
    )?;
    space.until_phase("flood", "Succeeded")?;
    let log = space.kubectl("logs flood")?;
    let numbers = log
        .lines()
        .map(|l| l.split(' ').next().unwrap_or_default().parse::<u64>());
    for (wanted, number) in numbers.enumerate() {
        ensure!(number == Ok(wanted as u64), "line {wanted} is {number:?}");
    }
    ensure!(
        log.lines().count() == 20_000,
        "{} lines",
        log.lines().count()
    );
    Ok(())
}

fn exec_carries_streams_and_exit_code(space: &Space<'_>) -> Result<()> {
    space.apply(
        &pod("shell")
            .with(shell("main", "sleep 1000").env("COLOUR", "blue"))
            .manifest(),
    )?;
    space.until_ready("shell")?;
    let out = space.kubectl_with(
        "exec shell --",
        &["sh", "-c", "echo $COLOUR; hostname; echo aside >&2"],
    )?;
    ensure!(out == "blue\nshell\n", "{out:?}");
    let (code, errors) =
        space.kubectl_fails("exec shell --", &["sh", "-c", "echo aside >&2; exit 7"])?;
    ensure!(
        code == 7 && errors.starts_with("aside\n"),
        "{code} {errors:?}"
    );
    let (_, errors) = space.kubectl_fails("exec shell --", &["/none"])?;
    ensure!(errors.contains("/none"), "{errors:?}");

    let mut wc = space.kubectl_streams("exec -i shell -- wc -c")?;
    wc.stdin
        .take()
        .context("stdin")?
        .write_all(&[b'x'; 100_000])?;
    let out = String::from_utf8(wc.wait_with_output()?.stdout)?;
    ensure!(out.trim() == "100000", "wc counted {out:?}");
    Ok(())
}

/// Only who the API server vouches for may read logs or run programs on a node.
fn kubelet_port_turns_strangers_away(space: &Space<'_>) -> Result<()> {
    let url = format!("https://{}:10250/pods", space.lab()?.node("n1").address());
    let namespace = space.lab()?.netns("cp");
    let ask = |args: &[&str]| {
        let mut argv = vec!["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}"];
        argv.extend_from_slice(args);
        argv.push(&url);
        hanok_e2e::network::in_namespace(&namespace, &argv)
    };
    ensure!(ask(&[])? == "401", "without credentials");
    ensure!(
        ask(&["-H", "Authorization: Bearer nonsense"])? == "401",
        "with a bad token"
    );
    let pki = space.lab()?.pki();
    let file = |name: &str| pki.join(name).display().to_string();
    let node = [
        "--cert",
        &file("node-n2.crt"),
        "--key",
        &file("node-n2.key"),
    ];
    ensure!(ask(&node)? == "403", "as another node");
    let server = [
        "--cert",
        &file("apiserver-kubelet-client.crt"),
        "--key",
        &file("apiserver-kubelet-client.key"),
    ];
    ensure!(ask(&server)? == "200", "as the API server");
    Ok(())
}
