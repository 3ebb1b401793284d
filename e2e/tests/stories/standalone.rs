//! A standalone agent: static pods on a machine that belongs to no cluster.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{Pod, pod, testapp};
use hanok_e2e::process::Spawn;
use hanok_e2e::runner::Story;
use hanok_e2e::{network, paths, stories};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod as Object;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage::Stage;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        standalone_agent_runs_its_static_pods_without_any_api_server,
        standalone_agent_runs_the_pods_of_a_url_and_serves_no_api,
        processes_of_a_pod_are_limited_by_the_nodes_configuration,
        pod_that_is_removed_does_not_wait_for_a_slow_network_plugin,
    ]
}

/// Name of the agent's record, and of its node.
const NAME: &str = "alone";
/// Name of the record of the server that has manifests.
const WEB: &str = "manifests";
/// Where its API is.
const API: &str = "https://127.0.0.1:10250";

/// A machine with an agent that nobody has told of a cluster. It goes with the story, however that ends.
struct Alone<'a> {
    space: &'a Space<'a>,
    stage: Stage,
}

impl<'a> Alone<'a> {
    /// With these fields of its configuration beside those that every such agent has.
    fn set(space: &'a Space<'a>, fields: impl Fn(&Stage) -> Value) -> Result<Self> {
        let stage = Stage::set(space, NAME)?;
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "failSwapOn": false,
            "podCIDR": "10.84.0.0/24",
            "podLogsDir": format!("{}/pod-logs", stage.state),
        });
        for (field, value) in fields(&stage).as_object().context("no fields")? {
            config[field] = value.clone();
        }
        fs::create_dir_all(format!("{}/manifests", stage.state))?;
        fs::write(format!("{}/config.yaml", stage.state), config.to_string())?;
        Ok(Self { space, stage })
    }

    fn start(&self) -> Result<()> {
        let state = &self.stage.state;
        let flags = [
            "agent".to_owned(),
            format!("--config={state}/config.yaml"),
            format!("--hostname-override={NAME}"),
            format!("--containers-log-dir={state}/container-logs"),
            format!("--cni-conf-dir={state}/cni"),
            format!("--cni-bin-dir={state}/bin"),
        ];
        self.space.lab()?.processes().spawn(&Spawn {
            name: NAME,
            netns: Some(&self.stage.netns),
            program: paths::hanok()?,
            args: flags
                .into_iter()
                .chain(self.stage.flags("alone0"))
                .collect(),
            env: vec![("RUST_LOG".into(), "info".into())],
        })?;
        self.space.until("the agent to be well", 20, || {
            self.curl(&["http://127.0.0.1:10248/healthz"])
        })?;
        Ok(())
    }

    fn stop(&self, signal: Signal) -> Result<()> {
        let processes = self.space.lab()?.processes();
        processes.stop(NAME, signal, Duration::from_secs(10))
    }

    fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.space.lab()?.processes().log(NAME))?)
    }

    fn curl(&self, args: &[&str]) -> Result<String> {
        let command = [&["curl", "-sSkf", "--max-time", "10"], args].concat();
        network::in_namespace(&self.stage.netns, &command)
    }

    /// What the agent says of its pods.
    fn pods(&self) -> Result<Vec<Object>> {
        let text = self.curl(&[&format!("{API}/pods")])?;
        let list: List<Object> = serde_json::from_str(&text)?;
        Ok(list.items)
    }

    fn until_pod(&self, what: &str, is: impl Fn(&Object) -> bool) -> Result<Object> {
        self.space.until(&format!("the pod to be {what}"), 30, || {
            let pod = self.pods()?.into_iter().next().context("no pod")?;
            ensure!(is(&pod), "{}", cluster::describe(&pod));
            Ok(pod)
        })
    }

    fn write(&self, file: &str, pod: &Pod) -> Result<()> {
        let text = pod.manifest().to_string();
        let text = text.replace("REGISTRY/", "hanok.local/");
        Ok(fs::write(
            format!("{}/manifests/{file}", self.stage.state),
            text,
        )?)
    }

    fn page(&self, pod: &Object) -> Result<String> {
        self.curl(&[&format!("http://{}:8080/", cluster::ip(pod))])
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // What is left beside is the lab's to remove.
        let _ = self.stop(Signal::KILL);
        if let Ok(lab) = self.space.lab() {
            let _ = lab
                .processes()
                .stop(WEB, Signal::KILL, Duration::from_secs(10));
        }
        let bridge = ["ip", "link", "delete", "alone0"];
        let _ = network::in_namespace(&self.stage.netns, &bridge);
    }
}

fn standalone_agent_runs_its_static_pods_without_any_api_server(space: &Space<'_>) -> Result<()> {
    let manifests =
        |stage: &Stage| json!({ "staticPodPath": format!("{}/manifests", stage.state) });
    let alone = Alone::set(space, manifests)?;
    let web = |word: &str| pod("web").with(testapp("main", &format!("serve 8080 {word}")));
    alone.write("web.json", &web("one"))?;
    alone.start()?;
    let first = alone.until_pod("ready", cluster::is_ready)?;
    ensure!(cluster::name(&first) == "web-alone");
    ensure!(alone.page(&first)?.trim() == "one");

    // It changes with its file.
    alone.write("web.json", &web("two"))?;
    let second = alone.until_pod("the new one", |pod| {
        cluster::is_ready(pod) && pod.metadata.uid != first.metadata.uid
    })?;
    ensure!(alone.page(&second)?.trim() == "two");
    let run =
        format!("{API}/run/default/web-alone/main?cmd=/testapp%20get%20http://127.0.0.1:8080/");
    ensure!(alone.curl(&["-XPOST", &run])?.trim() == "two");
    let logs = format!("{API}/containerLogs/default/web-alone/main");
    space.until("its log", 10, || {
        let logs = alone.curl(&[&logs])?;
        ensure!(!logs.is_empty());
        Ok(())
    })?;

    // What only an API server could give is refused, and so is its pod.
    let wants = testapp("main", "serve").env_from(
        "WORD",
        json!({ "configMapKeyRef": { "name": "c", "key": "k" } }),
    );
    alone.write("wants.json", &pod("wants").with(wants))?;
    space.until("the refusal", 10, || {
        let log = alone.log()?;
        ensure!(
            log.contains("static pods may not reference configmaps"),
            "{log}"
        );
        Ok(())
    })?;
    ensure!(alone.pods()?.len() == 1);

    // The agent dies, and the next one finds what runs.
    alone.stop(Signal::KILL)?;
    ensure!(alone.page(&second)?.trim() == "two");
    alone.start()?;
    let again = alone.until_pod("ready again", cluster::is_ready)?;
    ensure!(cluster::container_id(&again, "main") == cluster::container_id(&second, "main"));
    ensure!(cluster::restarts(&again, "main") == 0);
    let log = alone.log()?;
    ensure!(log.contains("reason=\"Started\""), "no event in {log}");

    fs::remove_file(format!("{}/manifests/web.json", alone.stage.state))?;
    space.until("nothing to be left", 30, || {
        ensure!(alone.pods()?.is_empty(), "there is a pod");
        alone.stage.is_clear(&["alone0"])
    })?;
    alone.stop(Signal::TERM)?;
    let log = alone.log()?;
    ensure!(log.contains("hanok agent ends, pods run on"), "{log}");
    Ok(())
}

fn standalone_agent_runs_the_pods_of_a_url_and_serves_no_api(space: &Space<'_>) -> Result<()> {
    let alone = Alone::set(space, |stage| {
        json!({
            "enableServer": false,
            "httpCheckFrequency": "1s",
            "staticPodURL": format!("http://127.0.0.1:8090/file{}/manifests/web.json", stage.state),
            "staticPodURLHeader": { "X-Node": ["alone"] },
        })
    })?;
    let processes = space.lab()?.processes();
    let serve = || {
        processes.spawn(&Spawn {
            name: WEB,
            netns: Some(&alone.stage.netns),
            program: paths::testapp()?,
            args: vec!["serve".into(), "8090".into()],
            env: Vec::new(),
        })
    };
    let web = |word: &str| {
        let serve = testapp("main", &format!("serve 8080 {word}"));
        pod("web").set("hostNetwork", true).with(serve)
    };
    let page = |word: &str| {
        space.until(&format!("the page to say {word}"), 30, || {
            let page = alone.curl(&["http://127.0.0.1:8080/"])?;
            ensure!(page.trim() == word, "{page}");
            Ok(())
        })
    };
    alone.write("web.json", &web("one"))?;
    alone.start()?;
    // It waits for a server that is not there yet.
    let complaints = |wanted: usize| {
        space.until("the complaints", 15, || {
            let log = alone.log()?;
            let found = log.matches("cannot fetch static pods").count();
            ensure!(found >= wanted, "{found} in {log}");
            Ok(found)
        })
    };
    let before = complaints(1)?;
    serve()?;
    page("one")?;
    ensure!(alone.curl(&[&format!("{API}/pods")]).is_err(), "an API");

    alone.write("web.json", &web("two"))?;
    page("two")?;

    // A server that is gone takes no pod with it; an empty list does.
    processes.stop(WEB, Signal::KILL, Duration::from_secs(10))?;
    complaints(before + 2)?;
    page("two")?;
    let empty = json!({ "apiVersion": "v1", "kind": "PodList", "items": [] });
    let file = format!("{}/manifests/web.json", alone.stage.state);
    fs::write(file, empty.to_string())?;
    serve()?;
    space.until("nothing to be left", 30, || {
        ensure!(alone.curl(&["http://127.0.0.1:8080/"]).is_err(), "a page");
        alone.stage.is_clear(&["alone0"])
    })?;
    alone.stop(Signal::TERM)
}

fn processes_of_a_pod_are_limited_by_the_nodes_configuration(space: &Space<'_>) -> Result<()> {
    let alone = Alone::set(
        space,
        |stage| json!({ "podPidsLimit": 20, "staticPodPath": format!("{}/manifests", stage.state) }),
    )?;
    let many = pod("many")
        .restart("Never")
        .with(testapp("main", "children 40"));
    alone.write("many.json", &many)?;
    alone.start()?;
    alone.until_pod("failed", |pod| cluster::phase(pod) == "Failed")?;
    let logs = format!("{API}/containerLogs/default/many-alone/main");
    let log = alone.curl(&[&logs])?;
    let made = log
        .strip_prefix("made ")
        .and_then(|rest| rest.split_once(": "));
    let made = made.with_context(|| format!("the log is {log:?}"))?;
    // The container's own process is one, and the pod's pause another.
    ensure!((15..20).contains(&made.0.parse::<u32>()?), "{log}");
    fs::remove_file(format!("{}/manifests/many.json", alone.stage.state))?;
    space.until("nothing to be left", 30, || {
        alone.stage.is_clear(&["alone0"])
    })?;
    alone.stop(Signal::TERM)
}

fn pod_that_is_removed_does_not_wait_for_a_slow_network_plugin(space: &Space<'_>) -> Result<()> {
    let alone = Alone::set(
        space,
        |stage| json!({ "staticPodPath": format!("{}/manifests", stage.state) }),
    )?;
    let state = &alone.stage.state;
    let seen = format!("{state}/seen");
    fs::create_dir_all(format!("{state}/bin"))?;
    let plugin = format!("{state}/bin/slow");
    let script = format!(
        "#!/bin/sh\ncat >/dev/null; echo $CNI_COMMAND >>{seen}\n[ $CNI_COMMAND != ADD ] || exec sleep 100\n"
    );
    fs::write(&plugin, script)?;
    fs::set_permissions(&plugin, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    fs::create_dir_all(format!("{state}/cni"))?;
    let list = json!({ "cniVersion": "1.0.0", "name": "slow", "plugins": [{ "type": "slow" }] });
    fs::write(format!("{state}/cni/10-slow.conflist"), list.to_string())?;
    alone.write("web.json", &pod("web").with(testapp("main", "serve")))?;
    alone.start()?;
    let calls = |wanted: &str| {
        space.until(&format!("the plugin to be called for {wanted}"), 10, || {
            let seen = fs::read_to_string(&seen)?;
            ensure!(seen.lines().any(|line| line == wanted), "{seen:?}");
            Ok(())
        })
    };
    calls("ADD")?;
    fs::remove_file(format!("{state}/manifests/web.json"))?;
    calls("DEL")?;
    space.until("nothing to be left", 10, || {
        ensure!(alone.pods()?.is_empty(), "there is a pod");
        alone.stage.is_clear(&["alone0"])
    })?;
    alone.stop(Signal::TERM)
}
