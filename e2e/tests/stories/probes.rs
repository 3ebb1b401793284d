//! Probes and hooks with real containers, and what is said of those that fail.

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::{Value, json};

pub(crate) fn stories() -> Vec<Story> {
    stories![Cluster:
        probes_of_every_kind_let_a_pod_be_ready,
        probes_that_fail_say_so_in_the_known_words,
        a_failed_liveness_probe_restarts_within_the_probes_own_grace,
        hooks_run_and_a_failed_one_is_told,
        a_container_is_stopped_by_the_signal_that_it_wants,
        one_exit_code_restarts_every_container_of_the_pod,
    ]
}

/// A probe that comes every second.
fn every_second(mut probe: Value) -> Value {
    probe["periodSeconds"] = 1.into();
    probe["failureThreshold"] = 1.into();
    probe
}

fn probes_of_every_kind_let_a_pod_be_ready(space: &Space<'_>) -> Result<()> {
    let named = json!({"httpGet": {"port": "web", "path": "/hostname",
        "httpHeaders": [{"name": "Host", "value": "a.example"}]}});
    let server = testapp("main", "serve 8080")
        .set("ports", json!([{"name": "web", "containerPort": 8080}]))
        .set(
            "startupProbe",
            json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 30}),
        )
        .set("readinessProbe", every_second(named))
        .set(
            "livenessProbe",
            every_second(json!({"exec": {"command": ["/testapp", "print", "x"]}})),
        );
    let health = testapp("health", "health 9000 main").set(
        "readinessProbe",
        every_second(json!({"grpc": {"port": 9000, "service": "main"}})),
    );
    space.apply(&pod("healthy").with(server).with(health).manifest())?;
    let pod = space.until_ready("healthy")?;
    let status = cluster::container(&pod, "main");
    ensure!(
        status.is_some_and(|s| s.started == Some(true)),
        "{}",
        cluster::describe(&pod)
    );
    let events = space.events("healthy")?;
    ensure!(cluster::restarts(&pod, "main") == 0, "{events:?}");
    Ok(())
}

fn probes_that_fail_say_so_in_the_known_words(space: &Space<'_>) -> Result<()> {
    let table = [
        (
            "refused",
            json!({"tcpSocket": {"port": 81}}),
            "Readiness probe failed: dial tcp ",
            ":81: connect: connection refused",
        ),
        (
            "http",
            json!({"httpGet": {"port": 8080, "path": "/env/NONE"}}),
            "Readiness probe failed: HTTP probe failed",
            " with statuscode: 404",
        ),
        (
            "https",
            json!({"httpGet": {"port": 8080, "scheme": "HTTPS"}}),
            "Readiness probe failed: Get \"https://",
            ":8080/\": EOF",
        ),
        (
            "exec",
            json!({"exec": {"command": ["/testapp", "crash", "3", "1"]}}),
            "Readiness probe failed: ",
            "crashing soon",
        ),
        (
            "slow",
            json!({"exec": {"command": ["/testapp", "sleep"]}}),
            "Readiness probe failed: command timed out: ",
            "\"/testapp sleep\" timed out after 1s",
        ),
        (
            "none",
            json!({"httpGet": {"port": "nowhere"}}),
            "Readiness probe errored and resulted in unknown state: ",
            "port \"nowhere\" not found",
        ),
        (
            "deaf",
            json!({"grpc": {"port": 82}}),
            "Readiness probe failed: timeout: failed to connect service",
            " within 1s: context deadline exceeded",
        ),
    ];
    for (name, probe, _, _) in &table {
        let server =
            testapp("main", "serve 8080").set("readinessProbe", every_second(probe.clone()));
        space.apply(&pod(name).with(server).manifest())?;
    }
    for (name, _, first, second) in &table {
        space.until_event(name, &["Unhealthy", first, second], 20)?;
    }
    Ok(())
}

fn a_failed_liveness_probe_restarts_within_the_probes_own_grace(space: &Space<'_>) -> Result<()> {
    let mut probe = every_second(json!({"exec": {"command": ["/testapp", "crash", "1"]}}));
    probe["terminationGracePeriodSeconds"] = 1.into();
    let main = testapp("main", "catch ignore").set("livenessProbe", probe);
    let pod = pod("sick")
        .set("terminationGracePeriodSeconds", 300)
        .with(main);
    space.apply(&pod.manifest())?;
    let pod = space.until_pod("sick", "restarted", 30, |p| {
        cluster::restarts(p, "main") > 0
    })?;
    ensure!(
        cluster::ended(&pod, "main") == Some((137, "Error")),
        "{}",
        cluster::describe(&pod)
    );
    let killing = "Container main failed liveness probe, will be restarted";
    space.until_event("sick", &["Killing", killing], 10)?;
    space.kubectl("delete pod sick --grace-period=1")?;
    Ok(())
}

fn hooks_run_and_a_failed_one_is_told(space: &Space<'_>) -> Result<()> {
    let exec = |line: &str| json!({"exec": {"command": ["sh", "-c", line]}});
    let good = shell("main", "sleep 1000").set(
        "lifecycle",
        json!({"postStart": exec("echo started > /tmp/hook"), "preStop": {"sleep": {"seconds": 1}}}),
    );
    space.apply(&pod("hooked").with(good).manifest())?;
    space.until_ready("hooked")?;
    let seen = space.kubectl("exec hooked -- cat /tmp/hook")?;
    ensure!(seen == "started\n", "{seen:?}");
    let bad =
        shell("main", "sleep 1000").set("lifecycle", json!({"postStart": exec("echo no; exit 4")}));
    space.apply(&pod("unhooked").with(bad).manifest())?;
    let pod = space.until_pod("unhooked", "told of its hook", 20, |p| {
        cluster::waiting(p, "main") == "PostStartHookError"
            || cluster::waiting(p, "main") == "CrashLoopBackOff"
    })?;
    ensure!(
        cluster::container(&pod, "main").is_some(),
        "{}",
        cluster::describe(&pod)
    );
    space.until_event(
        "unhooked",
        &["FailedPostStartHook", "PostStartHook failed"],
        10,
    )?;
    space.until_event("unhooked", &["Killing", "FailedPostStartHook"], 10)?;
    Ok(())
}

fn a_container_is_stopped_by_the_signal_that_it_wants(space: &Space<'_>) -> Result<()> {
    // The program ends at USR1; at TERM as well, so it is asked what came.
    let main = shell(
        "main",
        "trap 'echo got usr1; exit 7' USR1; trap '' TERM; while :; do sleep 0.1; done",
    )
    .set("lifecycle", json!({"stopSignal": "SIGUSR1"}));
    let pod = pod("signal").set("os", json!({"name": "linux"})).with(main);
    space.apply(&pod.manifest())?;
    let pod = space.until_ready("signal")?;
    let asked = cluster::container(&pod, "main").and_then(|s| s.stop_signal.clone());
    let kept =
        serde_json::to_value(&pod.spec)?["containers"][0]["lifecycle"]["stopSignal"] == "SIGUSR1";
    // A server without the feature drops the field.
    ensure!(!kept || asked.as_deref() == Some("SIGUSR1"), "{asked:?}");
    Ok(())
}

fn one_exit_code_restarts_every_container_of_the_pod(space: &Space<'_>) -> Result<()> {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    // The first run of the one ends the runs of all.
    let once = "echo run >> /shared/runs; [ $(wc -l < /shared/runs) -gt 1 ] || { sleep 1; exit 42; }; sleep 1000";
    let cause = shell("cause", once)
        .mount("shared", "/shared")
        .set("restartPolicy", "Never")
        .set("restartPolicyRules", rules);
    let pod = pod("together")
        .restart("Never")
        .volume("shared", json!({ "emptyDir": {} }))
        .init(testapp("first", "print one"))
        .with(testapp("main", "serve 8080"))
        .with(cause);
    space.apply(&pod.manifest())?;
    let before = space.until_ready("together")?;
    let pod = space.until_pod("together", "restarted", 30, |p| {
        cluster::is_ready(p)
            && ["first", "main", "cause"]
                .iter()
                .all(|name| cluster::restarts(p, name) == 1)
    })?;
    ensure!(
        cluster::ip(&before) == cluster::ip(&pod),
        "{}",
        cluster::describe(&pod)
    );
    ensure!(
        cluster::ended(&pod, "main") == Some((137, "RestartingAllContainers")),
        "{}",
        cluster::describe(&pod)
    );
    ensure!(
        cluster::condition(&pod, "AllContainersRestarting") == "False",
        "{}",
        cluster::describe(&pod)
    );
    Ok(())
}
