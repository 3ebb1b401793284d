//! Pods that a node refuses, and host ports.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{Pod, pod, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        pod_that_may_not_run_here_fails_with_its_reason,
        host_port_is_reached_from_everywhere_and_given_once,
        no_pod_takes_the_ports_of_the_node_itself,
    ]
}

/// A pod that no scheduler has looked at.
fn sent_to(node: &str, name: &str) -> Pod {
    pod(name).bound_to(node).with(testapp("main", "serve"))
}

fn pod_that_may_not_run_here_fails_with_its_reason(space: &Space<'_>) -> Result<()> {
    let large = pod("large")
        .bound_to("n1")
        .with(testapp("main", "serve").set("resources", json!({"requests": {"cpu": "1000"}})));
    let sysctl = json!({"sysctls": [{"name": "kernel.core_pattern", "value": "x"}]});
    let table = [
        (
            large,
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1000000, used: ",
        ),
        (
            sent_to("n1", "choosy").set("nodeSelector", json!({"disk": "none"})),
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            sent_to("n1", "sysctl").set("securityContext", sysctl),
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.core_pattern\" not allowlisted",
        ),
        (
            sent_to("n1", "other-os").set("os", json!({"name": "windows"})),
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
    ];
    for (pod, reason, message) in table {
        let manifest = pod.manifest();
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        space.apply(&manifest)?;
        let failed = space.until_phase(name, "Failed")?;
        let status = failed.status.context("a status")?;
        ensure!(status.reason.as_deref() == Some(reason), "{status:?}");
        let told = status.message.unwrap_or_default();
        ensure!(
            told.starts_with(&format!("Pod was rejected: {message}")),
            "{told}"
        );
        ensure!(status.container_statuses.is_none());
        space.until_event(name, &[reason, message], 10)?;
    }
    Ok(())
}

fn host_port_is_reached_from_everywhere_and_given_once(space: &Space<'_>) -> Result<()> {
    let ports = json!([{"containerPort": 8080, "hostPort": 18080}]);
    let with_port = |name: &str| {
        let main = testapp("main", "serve 8080 door").set("ports", ports.clone());
        pod(name).bound_to("n1").with(main)
    };
    space.apply(&with_port("door").manifest())?;
    for node in ["n1", "n2"] {
        space.apply(&sent_to(node, &format!("client-{node}")).manifest())?;
    }
    space.until_ready("door")?;
    let address = space.lab()?.node("n1").address();
    ensure!(fetch(&address)?.ends_with("door\n"), "from outside");
    for from in ["client-n1", "client-n2", "door"] {
        space.until_ready(from)?;
        let url = format!("exec {from} -- /testapp get http://{address}:18080/");
        ensure!(space.kubectl(&url)?.trim() == "door", "from {from}");
    }
    space.apply(&with_port("second").manifest())?;
    let refused = space.until_phase("second", "Failed")?;
    let reason = refused.status.and_then(|status| status.reason);
    ensure!(reason.as_deref() == Some("NodePorts"), "{reason:?}");
    space.kubectl("delete pod second door --now")?;
    ensure!(
        fetch(&address).is_err(),
        "nobody is behind the door any more"
    );
    space.apply(&with_port("third").manifest())?;
    let third = space.until_ready("third")?;
    ensure!(
        fetch(&address)?.ends_with("door\n"),
        "{}",
        cluster::describe(&third)
    );
    Ok(())
}

fn no_pod_takes_the_ports_of_the_node_itself(space: &Space<'_>) -> Result<()> {
    space.apply(&sent_to("n1", "witness").manifest())?;
    space.until_ready("witness")?;
    let wanted = [
        ("api", 10250, "0.0.0.0:10250"),
        ("health", 10248, "127.0.0.1:10248"),
    ];
    for (name, port, own) in wanted {
        let ports = json!([{"containerPort": 8080, "hostPort": port}]);
        let greedy = pod(name)
            .bound_to("n1")
            .with(testapp("main", "serve 8080 taken").set("ports", ports));
        space.apply(&greedy.manifest())?;
        let failed = space.until_phase(name, "Failed")?;
        let status = failed.status.context("a status")?;
        ensure!(status.reason.as_deref() == Some("NodePorts"), "{status:?}");
        let told = status.message.unwrap_or_default();
        ensure!(
            told.ends_with(&format!("the node itself listens on {own}")),
            "{told}"
        );
    }
    let word = space.kubectl("exec witness -- /testapp get http://127.0.0.1:8080/")?;
    ensure!(!word.is_empty(), "the node is reached as before");
    Ok(())
}

/// Fetches a page from the port of a node.
fn fetch(address: &str) -> Result<String> {
    let target = format!("{address}:18080").parse()?;
    let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(3))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
