//! Runs stories one after the other on one lab, and prints what `cargo test` would print.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::cluster::{Cluster, Space};
use crate::lab::Lab;
use crate::leak;

/// The first number for a lab when none is asked for: not that of `make cluster-up`, so that both may run.
const LAB: u8 = 1;

/// How much of a failed story's cause is said again at the end.
const CAUSE_LINES: usize = 20;

/// What a story plays on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Any cluster.
    Cluster,
    /// A lab, also one whose only node is a machine: it kills agents, cuts off servers, or tells what is hanok's own.
    Node,
    /// A lab of two nodes on this machine: it looks at nodes from outside.
    Lab,
}

/// One story.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// The law that it tells, in words joined by underscores.
    pub name: &'static str,
    /// What it plays on.
    pub stage: Stage,
    /// Tells it.
    pub tell: fn(&Space<'_>) -> Result<()>,
}

/// Lists stories of a module: `stories![Lab: first, second]`.
#[macro_export]
macro_rules! stories {
    ($($stage:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        vec![$($($crate::runner::Story {
            name: stringify!($name),
            stage: $crate::runner::Stage::$stage,
            tell: $name,
        }),+),+]
    };
}

/// How a run of stories was asked for.
#[derive(Debug, Default)]
struct Options {
    list: bool,
    filters: Vec<String>,
}

impl Options {
    /// Takes what `cargo test -- ...` passes: names, `--list`, and flags of the standard runner, which change nothing.
    fn parse(args: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        for arg in args {
            match arg.as_str() {
                "--list" => options.list = true,
                flag if flag.starts_with('-') => {}
                name => options.filters.push(name.to_owned()),
            }
        }
        options
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|f| name.contains(f.as_str()))
    }
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    /// Each with its cause.
    failed: Vec<(&'static str, String)>,
    ignored: usize,
}

/// Runs the stories that the arguments choose: on the cluster of KUBECONFIG, or else on a lab made for them. With
/// HANOK_MACHINE set, that lab's only node is a virtual machine.
pub fn main(stories: &[Story]) -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let chosen: Vec<&Story> = stories.iter().filter(|s| options.wants(s.name)).collect();
    let mut out = io::stdout();
    if options.list {
        chosen
            .iter()
            .for_each(|s| drop(writeln!(out, "{}: test", s.name)));
        return ExitCode::SUCCESS;
    }
    let began = Instant::now();
    writeln!(out, "\nrunning {} stories", chosen.len()).ok();
    let tally = match run(&chosen, &mut out) {
        Ok(tally) => tally,
        Err(e) => {
            writeln!(out, "no stage for the stories: {e:#}").ok();
            Tally {
                failed: chosen.iter().map(|s| (s.name, format!("{e:#}"))).collect(),
                ..Tally::default()
            }
        }
    };
    let (verdict, code) = match tally.failed.as_slice() {
        [] => ("ok", ExitCode::SUCCESS),
        failed => {
            let named = failed
                .iter()
                .map(|(name, cause)| format!("    {name}: {}", head(cause)));
            let named: Vec<String> = named.collect();
            writeln!(out, "\nfailures:\n{}", named.join("\n")).ok();
            ("FAILED", ExitCode::FAILURE)
        }
    };
    writeln!(
        out,
        "\ntest result: {verdict}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        tally.passed,
        tally.failed.len(),
        tally.ignored,
        stories.len() - chosen.len(),
        began.elapsed().as_secs_f64()
    )
    .ok();
    code
}

/// The first lines of a cause: what a reader of the end of a long run wants to see.
fn head(cause: &str) -> String {
    let lines: Vec<&str> = cause.lines().take(CAUSE_LINES).collect();
    lines.join("\n        ")
}

fn run(stories: &[&Story], out: &mut impl Write) -> Result<Tally> {
    if let Some(kubeconfig) = std::env::var_os("KUBECONFIG") {
        let registry = std::env::var("HANOK_REGISTRY").unwrap_or_else(|_| "localhost:5000".into());
        let cluster = Cluster::named_by(&PathBuf::from(kubeconfig), registry)?;
        return Ok(tell_all(&cluster, stories, out));
    }
    let lab = Lab::from_env(LAB)?;
    // For work on the stories: a lab that stays, and is used again while it runs.
    let keep = std::env::var_os("HANOK_KEEP_LAB").is_some();
    let runs = |name: &&str| lab.node(name).agent_runs().unwrap_or(false);
    let kept = keep && lab.nodes().iter().all(runs);
    if !kept && let Err(e) = up(&lab) {
        lab.down().map_err(|down| anyhow!("{e:#}; then {down:#}"))?;
        return Err(e);
    }
    let mut tally = tell_all(&Cluster::of_lab(&lab)?, stories, out);
    if !keep && let Err(e) = lab.down() {
        writeln!(out, "{e:#}").ok();
        let name = "lab_goes_down_and_leaves_nothing";
        tally.failed.push((name, format!("{e:#}")));
    }
    Ok(tally)
}

fn up(lab: &Lab) -> Result<()> {
    lab.up()?;
    if std::env::var_os("HANOK_MACHINE").is_some() {
        lab.boot_machine()?;
    }
    lab.start_nodes(&lab.nodes())
}

/// Why a story cannot be told on this cluster, if so.
fn obstacle(cluster: &Cluster, story: &Story) -> Option<String> {
    match (cluster.lab(), story.stage) {
        (Err(_), Stage::Node | Stage::Lab) => Some("needs the lab".into()),
        (Ok(lab), Stage::Lab) if lab.has_machine() => {
            Some("needs two nodes, or looks at one from outside".into())
        }
        (Ok(lab), _) if lab.has_machine() => untold(story.name),
        _ => None,
    }
}

/// The reason why a story cannot be told of a machine, from lines `name: reason`.
fn untold(name: &str) -> Option<String> {
    let text = include_str!("../v2/untold");
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(untold, _)| *untold == name)
        .map(|(_, reason)| reason.to_owned())
}

fn tell_all(cluster: &Cluster, stories: &[&Story], out: &mut impl Write) -> Tally {
    let mut tally = Tally::default();
    let mut lost = false;
    for story in stories {
        write!(out, "test {} ... ", story.name).ok();
        out.flush().ok();
        if let Some(reason) = obstacle(cluster, story) {
            writeln!(out, "ignored, {reason}").ok();
            tally.ignored += 1;
            continue;
        }
        if !lost && let Err(e) = cluster.lab().map_or(Ok(()), Lab::check_machine) {
            writeln!(out, "the machine is lost: {e:#}").ok();
            lost = true;
        }
        if lost {
            // Else each of them would wait for all that does not come.
            writeln!(out, "FAILED, without a machine").ok();
            let cause = "without a machine".to_owned();
            tally.failed.push((story.name, cause));
            continue;
        }
        let began = Instant::now();
        let result = tell(cluster, story);
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                writeln!(out, "ok ({seconds:.1} s)").ok();
                tally.passed += 1;
            }
            Err(e) => {
                let cause = format!("{e:#}");
                writeln!(out, "FAILED ({seconds:.1} s)\n{cause}\n").ok();
                tally.failed.push((story.name, cause));
            }
        }
    }
    tally
}

/// Tells a story in a namespace of its own, clears it, and looks for what is left.
fn tell(cluster: &Cluster, story: &Story) -> Result<()> {
    let space = cluster.space(
        &story
            .name
            .replace('_', "-")
            .chars()
            .take(60)
            .collect::<String>(),
    )?;
    let told = catch_unwind(AssertUnwindSafe(|| (story.tell)(&space)))
        .unwrap_or_else(|_| Err(anyhow!("the story panicked")))
        .map_err(|e| anyhow!("{e:#}\n{}", pods_and_events(&space)));
    // Whatever the story did to the lab, the next one finds it whole.
    let mended = cluster.lab().map_or(Ok(()), mend);
    let cleared = mended.and_then(|()| space.clear());
    let nothing_left = match cluster.lab() {
        Ok(lab) if cleared.is_ok() => leak::check(lab),
        _ => Ok(()),
    };
    let removed = space.remove();
    told.and(cleared).and(nothing_left).and(removed)
}

/// Starts again what a story has stopped and not started.
fn mend(lab: &Lab) -> Result<()> {
    lab.mend()?;
    let mut stopped = Vec::new();
    for name in lab.nodes() {
        if !lab.node(name).agent_runs()? {
            stopped.push(name);
        }
    }
    if stopped.is_empty() {
        Ok(())
    } else {
        lab.start_nodes(&stopped)
    }
}

fn pods_and_events(space: &Space<'_>) -> String {
    let pods = space.kubectl("get pods -o wide").unwrap_or_default();
    let events = space.kubectl("get events --sort-by=.metadata.creationTimestamp");
    format!(
        "the story ended with\n{pods}\n{}\n",
        events.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_that_no_machine_can_tell_has_its_reason() {
        let reason = untold("drained_node_gives_its_pods_to_others");
        assert_eq!(reason.as_deref(), Some("there is no other node"));
        assert_eq!(untold("limits_are_in_the_cgroup"), None);
    }

    #[test]
    fn names_filter_and_flags_of_the_standard_runner_are_taken() {
        let args = ["--nocapture", "kill", "--test-threads=1"].map(str::to_owned);
        let options = Options::parse(args.into_iter());
        assert!(options.wants("agent_kill_while_pulling"));
        assert!(!options.wants("deployment"));
    }
}
