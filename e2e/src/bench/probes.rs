//! What a node spends on probes: its own processes; all of it, with the programs that are run; and that without what the
//! same programs and connections take by themselves, at the same pace, when a loop of a few system calls makes them.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use serde_json::json;

use super::Options;
use super::lifecycle::{Bench, NAMESPACE};
use super::report::Report;
use super::subject::Subject;
use super::usage::{self, Spent};
use crate::manifest::{self, pod, testapp};
use crate::{network, paths};

/// What exec probes run.
const PROGRAM: [&str; 3] = ["/testapp", "print", "yes"];

/// How often the floor is taken.
const FLOOR_RUNS: u32 = 1000;

/// Makes the pods without probes and then with them, and takes the difference of what the node spends.
///
/// # Errors
/// When a pod does not become ready or does not go.
pub(super) async fn measure(
    client: &Client,
    registry: &str,
    subjects: &[Subject],
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let mut bench = Bench::new(client, registry).await?;
    let idle = Duration::from_secs(options.idle);
    for subject in subjects {
        bench.warm_up(subject).await?;
        let pause = 1000 / options.burst.max(1);
        let floor = floor(client, &mut bench, registry, subject, pause).await?;
        report.add(subject.name(), "probes_floor_of_an_exec", floor.exec, "ms");
        report.add(
            subject.name(),
            "probes_floor_of_http_and_tcp",
            floor.knock,
            "ms",
        );
        let mut spent = Vec::new();
        for probed in [false, true] {
            let pods = (0..options.burst)
                .map(|number| manifest(registry, subject, number, probed))
                .collect::<Result<Vec<_>>>()?;
            let mut aside = Report::default();
            let names = bench.create_pods(subject, &mut aside, &pods).await?;
            let name = if probed { "probes" } else { "no_probes" };
            spent.push(usage::spent(subject, report, name, idle).await);
            bench.delete_burst(subject, &mut aside, names).await?;
        }
        if let [without, with] = spent[..] {
            tell(subject, report, options.burst, [without, with], &floor);
        }
    }
    Ok(())
}

/// Adds what probes cost, as figures and in words.
fn tell(
    subject: &Subject,
    report: &mut Report,
    pods: usize,
    [without, with]: [Spent; 2],
    floor: &Floor,
) {
    // A millisecond every second is a tenth of a percent.
    #[expect(clippy::cast_precision_loss, reason = "a few hundred pods")]
    let percent = |millis: f64| millis * pods as f64 / 10.0;
    let own = with.own - without.own;
    let all = with.all - without.all;
    let beyond_execs = all - percent(floor.exec);
    let beyond_floors = beyond_execs - percent(floor.knock);
    for (name, value) in [
        ("probes_cpu_own_processes", own),
        ("probes_cpu_with_execs", all),
        ("probes_cpu_beyond_execs", beyond_execs),
        ("probes_cpu_beyond_floors", beyond_floors),
    ] {
        report.add(subject.name(), name, value, "%");
    }
    report.remark(format!(
        "{}: {pods} pods with three probes a second cost {all:.2} % of a core, {own:.2} % of it in the node's own \
         processes; {beyond_execs:.2} % is beyond the programs that exec probes run, and {beyond_floors:.2} % beyond \
         these and the kernel's work for the connections",
        subject.name()
    ));
}

/// Milliseconds of CPU.
struct Floor {
    /// Of the program of an exec probe when it is started as cheaply as the kernel allows, where it need not join anything:
    /// by a process of its own container.
    exec: f64,
    /// Of a connection and a request when they block and do nothing else, on the side that asks.
    knock: f64,
}

/// With so many milliseconds between one time and the next.
async fn floor(
    client: &Client,
    bench: &mut Bench,
    registry: &str,
    subject: &Subject,
    pause: usize,
) -> Result<Floor> {
    let name = format!("{}-floor", subject.name());
    let repeat = format!("repeat {FLOOR_RUNS} {pause} {}", PROGRAM.join(" "));
    let manifest = pod(&name)
        .bound_to(subject.node())
        .set("tolerations", json!([{ "operator": "Exists" }]))
        .init(testapp("floor", &repeat))
        .with(testapp("main", "serve 8080"));
    let pods = [read(&manifest, registry)?];
    let mut aside = Report::default();
    let names = bench.create_pods(subject, &mut aside, &pods).await?;
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let status = api.get(&name).await?.status.unwrap_or_default();
    let address = format!("{}:8080", status.pod_ip.unwrap_or_default());
    let (times, pause) = (FLOOR_RUNS.to_string(), pause.to_string());
    let program = paths::testapp()?;
    let program = program.to_str().context("the path of testapp")?;
    let knock = [program, "knock", &address, &times, &pause];
    let knock = network::in_namespace(&subject.netns(), &knock)?;
    bench.delete_burst(subject, &mut aside, names).await?;
    let inits = status.init_container_statuses.unwrap_or_default();
    let ended = inits
        .first()
        .and_then(|init| init.state.as_ref()?.terminated.as_ref());
    let micros = ended.and_then(|ended| ended.message.as_deref()?.trim().parse::<f64>().ok());
    Ok(Floor {
        exec: micros.context("the floor's container has left no figure")? / 1e3,
        knock: knock.trim().parse::<f64>()? / 1e3,
    })
}

/// A pod that is asked by HTTP, by TCP and by exec, each every second; or the same without questions.
fn manifest(registry: &str, subject: &Subject, number: usize, probed: bool) -> Result<Pod> {
    let every_second =
        |action: &str, what: serde_json::Value| json!({action: what, "periodSeconds": 1});
    let mut server = testapp("main", "serve 8080");
    let mut other = testapp("other", "sleep");
    if probed {
        let path = json!({"port": 8080, "path": "/"});
        server = server
            .set("livenessProbe", every_second("httpGet", path))
            .set(
                "readinessProbe",
                every_second("tcpSocket", json!({"port": 8080})),
            );
        let command = json!({"command": PROGRAM});
        other = other.set("livenessProbe", every_second("exec", command));
    }
    let name = format!(
        "{}-{number}-{}",
        subject.name(),
        if probed { "probed" } else { "plain" }
    );
    let manifest = pod(&name)
        .bound_to(subject.node())
        .set("tolerations", json!([{ "operator": "Exists" }]))
        .with(server)
        .with(other);
    read(&manifest, registry)
}

fn read(manifest: &manifest::Pod, registry: &str) -> Result<Pod> {
    let text = manifest
        .manifest()
        .to_string()
        .replace("REGISTRY", registry);
    serde_json::from_str(&text).context("the bench's own manifest")
}
