//! The figures: how long pods take to become ready and to go, and what a node with fifty of them costs.
//!
//! Everything is seen through the API server by a watch, on pods that name their node, so that the scheduler is not
//! part of it. With a peer, both nodes do the same work in turn, and every figure stands beside the peer's; without one,
//! beside what hanok aims at. Lines go to standard output and to `target/bench/figures.tsv`.

mod floor;
mod lifecycle;
mod probes;
mod report;
mod subject;
mod timeline;
mod usage;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::cluster::client;
use crate::lab::Lab;
use crate::paths;
use lifecycle::Bench;
use report::Report;
use subject::Subject;

/// The node that hanok runs on.
const NODE: &str = "n1";

/// How much is measured.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Measure a kubelet node in turn with ours.
    #[arg(long)]
    peer: bool,
    /// Leave hanok out, to try the measuring itself.
    #[arg(long, hide = true)]
    only_peer: bool,
    /// Pods one after the other.
    #[arg(long, default_value_t = 30)]
    pods: usize,
    /// Pods at once.
    #[arg(long, default_value_t = 50)]
    burst: usize,
    /// Seconds of idling with the pods of the burst.
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Only what probes cost: so many pods as `--burst` says, each asked three times a second.
    #[arg(long)]
    probes: bool,
}

/// Starts a lab, measures, prints, and takes the lab down.
///
/// # Errors
/// When the lab does not come up or a pod does not do what it should.
pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let measured = measure_in(lab, options);
    let down = lab.down();
    let mut report = measured?;
    report.write(&directory())?;
    down
}

/// Where the figures go.
fn directory() -> PathBuf {
    paths::target().join("bench")
}

fn measure_in(lab: &Lab, options: &Options) -> Result<Report> {
    lab.up()?;
    let mut subjects = Vec::new();
    if !options.only_peer {
        lab.start_nodes(&[NODE])?;
        subjects.push(Subject::Hanok(lab.node(NODE)));
    }
    if options.peer || options.only_peer {
        lab.peer().start()?;
        subjects.push(Subject::Kubelet(lab.peer()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(lab, &subjects, options))
}

async fn measure(lab: &Lab, subjects: &[Subject], options: &Options) -> Result<Report> {
    let client = client(&lab.kubeconfig("admin")).await?;
    let mut report = Report::default();
    if options.probes {
        probes::measure(&client, &lab.registry(), subjects, options, &mut report).await?;
        return Ok(report);
    }
    floor::measure(&client, &mut report, options.pods)
        .await
        .context("floor")?;
    let mut bench = Bench::new(&client, &lab.registry()).await?;
    for subject in subjects {
        bench
            .warm_up(subject)
            .await
            .with_context(|| format!("warm-up of {}", subject.name()))?;
    }
    let logged = log(subjects).len();
    bench
        .one_after_the_other(subjects, &mut report, options.pods, 0)
        .await?;
    for (phase, millis) in timeline::medians(log(subjects).get(logged..).unwrap_or_default()) {
        report.add("hanok", &format!("phase_{phase}_p50"), millis, "ms");
    }
    bench
        .one_after_the_other(subjects, &mut report, options.pods, 2)
        .await?;
    for subject in subjects {
        let burst = bench
            .create_burst(subject, &mut report, options.burst)
            .await?;
        usage::memory(subject, &mut report);
        usage::idle(subject, &mut report, Duration::from_secs(options.idle)).await;
        bench.delete_burst(subject, &mut report, burst).await?;
    }
    Ok(report)
}

/// What the agent has logged so far.
fn log(subjects: &[Subject]) -> String {
    let hanok = subjects.iter().find_map(|subject| match subject {
        Subject::Hanok(node) => Some(node.log()),
        Subject::Kubelet(_) => None,
    });
    hanok.unwrap_or_default()
}

/// Makes the namespace of a measurement and waits until pods may be created in it.
async fn namespace(client: &Client, name: &str) -> Result<()> {
    use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), name);
    let ready = async {
        while accounts.get_opt("default").await?.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(20), ready)
        .await
        .context("the service account")?
}
