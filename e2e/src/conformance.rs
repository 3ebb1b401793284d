//! Kubernetes' own conformance suite on a lab: its compiled tests, run by ginkgo against our nodes, or against the
//! peer node for comparison.
//!
//! Verdicts go to `target/conformance/NODE.tsv`, both nodes' last verdicts side by side to `summary.tsv`, and what the
//! specs said to `NODE.log`. The node must be as clean afterwards as after a story.

mod report;
mod table;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::lab::{Lab, NODES};
use crate::process::wait_for;
use crate::{image, leak, paths};
use report::{Spec, Verdict};

/// How often a spec that failed is run before it counts as failed.
const ATTEMPTS: u32 = 3;

/// How long the specs' namespaces may take to go after the last spec.
const CLEARING: Duration = Duration::from_secs(180);

/// What is run, and on which node.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Specs whose text matches this expression.
    #[arg(long, default_value = r"\[sig-node\].*\[Conformance\]")]
    focus: String,
    /// Except those that match this one.
    #[arg(long, default_value = r"\[Serial\]|\[Slow\]|\[Disruptive\]")]
    skip: String,
    /// Specs at once.
    #[arg(long, default_value_t = 12)]
    procs: usize,
    /// Run them on the kubelet node instead of ours.
    #[arg(long)]
    peer: bool,
    /// Minutes after which the rest is given up.
    #[arg(long, default_value_t = 120)]
    minutes: u64,
}

impl Options {
    /// The name in tables.
    fn subject(&self) -> &'static str {
        if self.peer { "kubelet" } else { "hanok" }
    }
}

/// Starts a lab, runs the suite, prints the table, and takes the lab down. With HANOK_KEEP_LAB set the lab stays, and
/// is used again while it runs.
///
/// # Errors
/// When the lab does not come up, the suite does not run, or a spec fails.
pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let began = Instant::now();
    let keep = std::env::var_os("HANOK_KEEP_LAB").is_some();
    let ran = prepare(lab, options, keep).and_then(|()| run_in(lab, options));
    let down = if keep { Ok(()) } else { lab.down() };
    let mut specs = ran?;
    specs.extend(leftovers(down, "the lab goes down and leaves nothing"));
    table::write(&directory(), options.subject(), &specs)?;
    table::print(&specs, options.subject(), began.elapsed());
    let failed = specs.iter().filter(|s| s.verdict == Verdict::Failed);
    let failed = failed.count();
    ensure!(
        failed == 0,
        "{failed} specs failed; what they said is in {}",
        log(options).display()
    );
    Ok(())
}

/// Where verdicts and logs go.
fn directory() -> PathBuf {
    paths::target().join("conformance")
}

fn log(options: &Options) -> PathBuf {
    directory().join(format!("{}.log", options.subject()))
}

fn prepare(lab: &Lab, options: &Options, keep: bool) -> Result<()> {
    let running = !options.peer && NODES.iter().all(|n| lab.node(n).agent().is_some());
    if !(keep && running) {
        lab.up()?;
        if options.peer {
            lab.peer().start()?;
        } else {
            lab.start_nodes(&NODES)?;
        }
    }
    let registry = lab.registry();
    fs::create_dir_all(temporary(lab))?;
    fs::write(repositories(lab), repository_list(&registry))?;
    let list = suite(lab)?
        .arg("--list-images")
        .output()
        .context("list the suite's images")?;
    ensure!(list.status.success(), "the suite does not list its images");
    image::publish_suite(&registry, &String::from_utf8_lossy(&list.stdout))
}

/// File that tells the suite where its images are.
fn repositories(lab: &Lab) -> PathBuf {
    lab.dir().join("repositories.yaml")
}

/// Where the suite leaves its temporary files, that go with the lab: each start of it makes a directory and lets it lie.
fn temporary(lab: &Lab) -> PathBuf {
    lab.dir().join("temporary")
}

/// The registries that the suite knows, by our own; those that must not exist or must refuse stay as they are.
fn repository_list(registry: &str) -> String {
    let below = |key: &str, path: &str| format!("{key}: {registry}{path}\n");
    [
        below(
            "promoterE2eRegistry",
            &format!("/{}", image::SUITE_REPOSITORY),
        ),
        below("gcRegistry", ""),
        below("gcEtcdRegistry", ""),
        below("buildImageRegistry", "/build-image"),
        below("sigStorageRegistry", "/sig-storage"),
    ]
    .concat()
}

/// The suite itself.
fn suite(lab: &Lab) -> Result<Command> {
    let mut command = Command::new(paths::go_program("e2e.test")?);
    command
        .env("KUBE_TEST_REPO_LIST", repositories(lab))
        .env("TMPDIR", temporary(lab));
    Ok(command)
}

fn run_in(lab: &Lab, options: &Options) -> Result<Vec<Spec>> {
    fs::create_dir_all(directory())?;
    let report = lab.dir().join("ginkgo.json");
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let output = File::create(log(options))?;
    eprintln!("the suite runs; see {}", log(options).display());
    let status = ginkgo(lab, options, &report)?
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .context("run ginkgo")?;
    let text = fs::read(&report).with_context(|| {
        format!(
            "ginkgo ended ({status}) without a report; see {}",
            log(options).display()
        )
    })?;
    let mut specs = report::parse(&text)?;
    ensure!(!specs.is_empty(), "no spec matches {:?}", options.focus);
    for spec in specs.iter().filter(|spec| spec.attempts > 1) {
        eprintln!(
            "{} at attempt {}: {}",
            spec.verdict.word(),
            spec.attempts,
            spec.name
        );
    }
    if !options.peer {
        specs.extend(leftovers(
            clean(lab),
            "the node has nothing left of any pod",
        ));
    }
    Ok(specs)
}

/// ginkgo in the control plane's network namespace, whence every node and every pod can be reached.
fn ginkgo(lab: &Lab, options: &Options, report: &Path) -> Result<Command> {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{}", lab.netns("cp")))
        .arg("--")
        .arg(paths::go_program("ginkgo")?)
        .args(["--no-color", "--keep-going"])
        // Some specs have a race of their own: one asks for a log before a slow shell has written it, and its own
        // second try speaks plain HTTP to a port of TLS.
        .arg(format!("--flake-attempts={ATTEMPTS}"))
        .arg(format!("--timeout={}m", options.minutes))
        .arg(format!("--procs={}", options.procs))
        .arg(format!("--focus={}", options.focus))
        .arg(format!("--skip={}", options.skip))
        .arg(format!("--json-report={}", report.display()))
        .arg(paths::go_program("e2e.test")?)
        .arg("--")
        .arg(format!(
            "--kubeconfig={}",
            lab.kubeconfig("admin").display()
        ))
        .arg("--provider=skeleton")
        .env("KUBE_TEST_REPO_LIST", repositories(lab))
        .env("TMPDIR", temporary(lab));
    Ok(command)
}

/// Waits until the pods of the specs are gone, and then until nothing is left of them on the nodes.
fn clean(lab: &Lab) -> Result<()> {
    wait_for("the specs' pods to go", CLEARING, || {
        let pods = lab.kubectl(&["get", "pods", "--all-namespaces", "--no-headers"])?;
        ensure!(pods.trim().is_empty(), "there are\n{pods}");
        Ok(())
    })?;
    leak::check(lab)
}

/// A check of ours as one more line of the table.
fn leftovers(result: Result<()>, law: &str) -> Option<Spec> {
    Some(Spec {
        name: format!("[hanok] {law}"),
        verdict: Verdict::Failed,
        seconds: 0.0,
        attempts: 1,
        message: format!("{:#}", result.err()?),
    })
}
