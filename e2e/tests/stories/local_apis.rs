//! What a node tells programs on its own machine, as Kubernetes' own clients read it (`e2e/localapi`).

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::manifest::{Pod, pod, testapp};
use hanok_e2e::paths;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::{Value, json};

use crate::static_pods::Manifest;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        numbers_of_a_pods_fields_are_those_of_kubernetes,
        pod_of_the_local_api_is_that_of_the_api_server,
        watch_of_the_local_api_follows_pods_to_their_end,
        pod_resources_tell_pods_in_both_versions,
    ]
}

/// A socket of n1's agent.
fn socket(space: &Space<'_>, name: &str) -> Result<PathBuf> {
    Ok(space.lab()?.node("n1").dir().join("state").join(name))
}

/// What `localapi` prints.
fn ask(args: &[&str]) -> Result<Value> {
    let output = Command::new(paths::go_program("localapi")?)
        .args(args)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "localapi {}: {errors}",
        args.join(" ")
    );
    serde_json::from_slice(&output.stdout).context("localapi prints JSON")
}

fn numbers_of_a_pods_fields_are_those_of_kubernetes(_: &Space<'_>) -> Result<()> {
    let printed = Command::new(paths::go_program("localapi")?)
        .arg("fields")
        .output()?;
    let table = paths::workspace().join("agent/src/pods_api/encode/fields.txt");
    ensure!(
        String::from_utf8(printed.stdout)? == fs::read_to_string(&table)?,
        "{} is not what `localapi fields` prints",
        table.display()
    );
    Ok(())
}

/// A pod with most kinds of fields that a pod can have.
fn rich() -> Pod {
    let probe = json!({
        "httpGet": {"path": "/", "port": "web", "httpHeaders": [{"name": "X-Probe", "value": ""}]},
        "periodSeconds": 1,
    });
    let app = testapp("app", "serve 8080 rich")
        .limits("64Mi", "500m")
        .env("PLAIN", "")
        .set("ports", json!([{"name": "web", "containerPort": 8080}]))
        .set("readinessProbe", probe)
        .set(
            "livenessProbe",
            json!({"tcpSocket": {"port": 8080}, "initialDelaySeconds": 1}),
        )
        .set(
            "lifecycle",
            json!({"preStop": {"exec": {"command": ["/testapp", "crash", "0"]}}}),
        )
        .set(
            "securityContext",
            json!({"runAsUser": 0, "readOnlyRootFilesystem": false, "capabilities": {"drop": ["ALL"]}}),
        )
        .mount("scratch", "/scratch")
        .mount("told", "/told");
    let sidecar = testapp("proxy", "serve 8081 proxy").set("restartPolicy", "Always");
    pod("rich")
        .on("n1")
        .init(testapp("first", "crash 0"))
        .init(sidecar)
        .with(app)
        .volume("scratch", json!({"emptyDir": {"sizeLimit": "1Mi"}}))
        .volume("told", told())
        .set("terminationGracePeriodSeconds", 0)
        .set("securityContext", json!({"fsGroup": 7, "supplementalGroups": [0, 9]}))
        .set("hostAliases", json!([{"ip": "192.0.2.1", "hostnames": ["a", "b"]}]))
        .set("dnsConfig", json!({"options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}))
        .set("readinessGates", json!([{"conditionType": "example.com/ready"}]))
        .set(
            "topologySpreadConstraints",
            json!([{
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
            }]),
        )
        .set(
            "affinity",
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 7,
                "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"z": "1", "a": "2"}}},
            }]}}),
        )
}

/// A volume of several sources.
fn told() -> Value {
    json!({"projected": {"defaultMode": 0o440, "sources": [
        {"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "cpu", "mode": 0, "resourceFieldRef":
                {"containerName": "app", "resource": "limits.cpu", "divisor": "1m"}},
        ]}},
        {"configMap": {"name": "kube-root-ca.crt", "optional": true}},
        {"secret": {"name": "absent", "optional": true}},
    ]}})
}

fn pod_of_the_local_api_is_that_of_the_api_server(space: &Space<'_>) -> Result<()> {
    let mut manifest = rich().manifest();
    manifest["metadata"]["annotations"] = json!({"zeta": "ζ", "alpha": ""});
    space.apply(&manifest)?;
    let pods_api = socket(space, "pods-api/pods-api.sock")?;
    let pods_api = pods_api.to_str().context("path")?;
    // Its readiness gate stays shut.
    space.until_pod("rich", "all running", 30, |pod| {
        hanok_e2e::cluster::condition(pod, "ContainersReady") == "True"
    })?;
    space.until("one and the same pod", 10, || {
        let ours: Value =
            serde_json::from_str(&space.kubectl("get pod rich -o json --show-managed-fields")?)?;
        let uid = ours["metadata"]["uid"].as_str().context("uid")?;
        let got = ask(&["get", pods_api, uid])?;
        let (theirs, got) = (comparable(ours.clone()), comparable(got));
        ensure!(
            got == theirs,
            "told\n{got:#}\nand the server has\n{theirs:#}"
        );
        let listed = ask(&["list", pods_api])?;
        let listed = listed.as_array().context("a list")?;
        let listed = listed.iter().find(|one| one["metadata"]["uid"] == uid);
        let listed = comparable(listed.context("it is not in the list")?.clone());
        ensure!(listed == theirs, "listed\n{listed:#}");
        Ok(())
    })?;
    let refused = ask(&["get", pods_api, "no-such-uid"]).map(drop);
    let refused = refused
        .err()
        .context("a pod that is not there")?
        .to_string();
    ensure!(
        refused.ends_with("NotFound: pod with UID no-such-uid not found\n"),
        "{refused}"
    );
    Ok(())
}

/// A pod without what changes by the node's own writing, and what it is in JSON alone.
fn comparable(mut pod: Value) -> Value {
    if let Some(pod) = pod.as_object_mut() {
        pod.remove("apiVersion");
        pod.remove("kind");
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    pod
}

/// A watch that runs until it is dropped.
struct Watch {
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    fn start(socket: &str) -> Result<Self> {
        let mut child = Command::new(paths::go_program("localapi")?)
            .args(["watch", socket])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("output")?);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Self { child, lines })
    }

    /// The events up to one that is wanted, with that one.
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Vec<Value>> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut events = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                bail!("no {what} among {events:?}");
            };
            let event: Value = serde_json::from_str(&line)?;
            let found = wanted(&event);
            events.push(event);
            if found {
                return Ok(events);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Ended already, where something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watch_of_the_local_api_follows_pods_to_their_end(space: &Space<'_>) -> Result<()> {
    let pods_api = socket(space, "pods-api/pods-api.sock")?;
    let watch = Watch::start(pods_api.to_str().context("path")?)?;
    watch.until("mark", |event| event["type"] == "INITIAL_SYNC_COMPLETE")?;
    let file = Manifest::write(space, &pod("own").with(testapp("main", "serve")))?;
    space.apply(
        &pod("web")
            .on("n1")
            .with(testapp("main", "serve"))
            .manifest(),
    )?;
    let is_ready = |event: &Value| {
        let conditions = event["pod"]["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    let of = |event: &Value, name: &str| {
        event["pod"]["metadata"]["name"] == name
            && event["pod"]["metadata"]["namespace"] == space.name()
    };
    let mut events = Vec::new();
    for name in ["web", "own-n1"] {
        if !events
            .iter()
            .any(|event| of(event, name) && is_ready(event))
        {
            events.extend(watch.until("ready pod", |event| of(event, name) && is_ready(event))?);
        }
    }
    space.kubectl("label pod web colour=red")?;
    let labelled = |event: &Value| event["pod"]["metadata"]["labels"]["colour"] == "red";
    events.extend(watch.until("label", |event| of(event, "web") && labelled(event))?);
    space.kubectl("delete pod web --wait=false")?;
    drop(file);
    let is_end = |event: &Value, name: &str| of(event, name) && event["type"] == "DELETED";
    for name in ["web", "own-n1"] {
        if !events.iter().any(|event| is_end(event, name)) {
            events.extend(watch.until("end", |event| is_end(event, name))?);
        }
    }
    for name in ["web", "own-n1"] {
        let kinds = events.iter().filter(|event| of(event, name));
        let kinds: Vec<_> = kinds.filter_map(|event| event["type"].as_str()).collect();
        let middle = &kinds[1..kinds.len() - 1];
        ensure!(
            kinds[0] == "ADDED" && middle.iter().all(|kind| *kind == "MODIFIED"),
            "{kinds:?}"
        );
    }
    let ending = |event: &&Value| !event["pod"]["metadata"]["deletionTimestamp"].is_null();
    let web: Vec<_> = events.iter().filter(|event| of(event, "web")).collect();
    let first = web
        .iter()
        .position(ending)
        .context("it was not seen to end")?;
    ensure!(
        web[first..web.len() - 1].iter().all(ending),
        "it was to live on after it was to end"
    );
    space.until_no_pods(20)
}

fn pod_resources_tell_pods_in_both_versions(space: &Space<'_>) -> Result<()> {
    let sidecar = testapp("proxy", "serve 8081 proxy").set("restartPolicy", "Always");
    let web = pod("web")
        .on("n1")
        .init(sidecar)
        .with(testapp("main", "serve"));
    space.apply(&web.manifest())?;
    space.until_ready("web")?;
    let resources = socket(space, "pod-resources/kubelet.sock")?;
    let told = ask(&["resources", resources.to_str().context("path")?])?;
    for (version, containers) in [
        ("v1", json!(["proxy", "main"])),
        ("v1alpha1", json!(["main"])),
    ] {
        let pods = told[version].as_array().context("a list")?;
        let ours = pods.iter().filter(|pod| pod["namespace"] == space.name());
        let ours: Vec<_> = ours.collect();
        let expected = json!({"namespace": space.name(), "name": "web", "containers": containers});
        ensure!(ours == [&expected], "{version}: {ours:?}");
    }
    Ok(())
}
