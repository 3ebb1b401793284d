//! How long a pod takes, step by step: the runtime with its built-in network, without images to fetch.
//!
//! `cargo bench -p hanok-runtime --bench pod [-- ROUNDS]`, as root. One line a figure: name, p50, p99, unit.
//! The steps are the runtime's spans. A container beside those of other runtimes is in the bench `runtime`.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

#[path = "../copied_program.rs"]
mod copied_program;
#[path = "../tests/pod/fakes.rs"]
mod fakes;
#[path = "../tests/pod/rig.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod rig;
#[path = "../static_programs.rs"]
mod static_programs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hanok_cni::{BuiltIn, Config, Options, Source};
use hanok_runtime::api::{ContainerState, RuntimeService};
use hanok_runtime::sandbox::network::CniNetwork;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use rig::Rig;

/// Durations by name, in the order of their first appearance.
#[derive(Debug, Default, Clone)]
#[expect(clippy::type_complexity, reason = "used once")]
struct Figures(Arc<Mutex<(Vec<String>, BTreeMap<String, Vec<Duration>>)>>);

impl Figures {
    fn add(&self, name: &str, took: Duration) {
        let mut figures = self.0.lock().unwrap();
        if !figures.1.contains_key(name) {
            figures.0.push(name.to_owned());
        }
        figures.1.entry(name.to_owned()).or_default().push(took);
    }

    fn print(&self) {
        let figures = self.0.lock().unwrap();
        for name in &figures.0 {
            let mut all = figures.1[name].clone();
            all.sort();
            let at = |share: usize| all[(all.len() - 1) * share / 100].as_secs_f64() * 1e3;
            println!(
                "{name}\t{:.2}\t{:.2}\tms\t{} runs",
                at(50),
                at(99),
                all.len()
            );
        }
    }
}

/// Measures every span from its making to its end.
struct Spans(Figures);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        context
            .span(id)
            .unwrap()
            .extensions_mut()
            .insert(Instant::now());
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if let Some(begin) = span.extensions().get::<Instant>() {
            self.0
                .add(&format!("  span {}", span.name()), begin.elapsed());
        }
    }
}

fn main() {
    let rounds = std::env::args()
        .skip(1)
        .find_map(|word| word.parse().ok())
        .unwrap_or(20);
    // Records live on a tmpfs, as /run is one.
    tempfile::env::override_temp_dir(Path::new("/dev/shm")).unwrap();
    let figures = Figures::default();
    let subscriber = tracing_subscriber::registry().with(Spans(figures.clone()));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    // On a thread, and so on threads, with a network of their own.
    let ours = figures.clone();
    let bench = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(pods(rounds));
        println!("spans of all of them");
        ours.print();
    });
    bench.join().unwrap();
}

async fn pods(rounds: usize) {
    for pause in [Duration::ZERO, Duration::from_millis(200)] {
        let figures = Figures(Arc::default());
        let mut rig = Rig::new("bench").await;
        rig.pod_network = Arc::new(network(&rig));
        rig.open().await;
        for _ in 0..rounds {
            tokio::time::sleep(pause).await;
            pod(&rig, &figures).await;
        }
        rig.finish().await;
        println!("pod, {} ms apart", pause.as_millis());
        figures.print();
    }
}

fn network(rig: &Rig) -> CniNetwork {
    let built_in = BuiltIn {
        name: "pods".into(),
        bridge: "hkbench0".into(),
        pod_cidrs: vec!["10.213.8.0/24".parse().unwrap()],
        mtu: None,
        masquerade: false,
        non_masquerade_cidrs: vec![],
        hairpin: false,
    };
    let options = Options {
        source: Source::Fixed(Config::built_in(&built_in).unwrap()),
        cache_dir: rig.path("cni"),
        ipam_dir: rig.path("ipam"),
        ..Options::default()
    };
    CniNetwork::new(rig.path("netns"), options)
}

/// One pod with one container that ends at once.
async fn pod(rig: &Rig, figures: &Figures) {
    let begin = Instant::now();
    let config = rig.sandbox_config();
    let runtime = rig.runtime();
    runtime
        .update_cgroup(&config.cgroup_parent, &rig::memory(1 << 30))
        .await
        .unwrap();
    figures.add("update_cgroup", begin.elapsed());
    let sandbox = runtime.run_pod_sandbox(config).await.unwrap();
    figures.add("run_pod_sandbox, since begin", begin.elapsed());
    let script = rig.script("c", "true");
    let container = runtime.create_container(&sandbox.id, script).await.unwrap();
    figures.add("create_container, since begin", begin.elapsed());
    runtime.start_container(&container).await.unwrap();
    figures.add("start_container, since begin", begin.elapsed());
    rig.wait(&container, ContainerState::Exited).await;
    figures.add("exited, since begin", begin.elapsed());
    let end = Instant::now();
    runtime.remove_pod_sandbox(&sandbox.id).await.unwrap();
    figures.add("remove_pod_sandbox", end.elapsed());
    let end = Instant::now();
    runtime
        .remove_cgroup(&sandbox.config.cgroup_parent)
        .await
        .unwrap();
    figures.add("remove_cgroup", end.elapsed());
}
