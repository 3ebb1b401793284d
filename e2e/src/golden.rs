//! The spellings that users and controllers match on, as a kubelet writes them: phases, reasons, messages, conditions,
//! and the events, of pods that each make a node say something.
//!
//! `e2e/golden/kubelet.txt` is what a kubelet node says of every case, `e2e/golden/known.txt` what a hanok node says
//! otherwise, and why; names, addresses, ids, times and digests are left out. [`run`] checks a hanok node against both on a
//! lab of its own, beside a kubelet node when it is asked to write the table anew.

#![expect(clippy::print_stdout, reason = "the command's output")]

mod case;
mod cases;
mod play;
mod table;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::cluster::{Cluster, Space};
use crate::lab::Lab;
use crate::paths;
use crate::process::patience;
use case::Case;
use play::Goal;
use table::{Blocks, Known};
use words::{Lines, Plain};

/// The node that hanok runs on, and the other one.
const HANOK: &str = "n1";
const PEER: &str = "peer";

/// Which cases, and whether the table is written.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Writes the table anew, from what a kubelet node says, before a hanok node is checked against it.
    #[arg(long)]
    peer: bool,
    /// Leaves the lab up.
    #[arg(long)]
    keep: bool,
    /// Only cases whose names hold one of these words.
    words: Vec<String>,
}

impl Options {
    fn cases(&self) -> Vec<Case> {
        let wanted = |case: &Case| {
            let mut words = self.words.iter();
            self.words.is_empty() || words.any(|word| case.name.contains(word.as_str()))
        };
        cases::all().into_iter().filter(wanted).collect()
    }
}

/// Checks every case on the first node of a story's lab.
///
/// # Errors
/// When words differ.
pub fn check_all(space: &Space<'_>) -> Result<()> {
    check(space, &cases::all())
}

/// Starts a lab, or takes the one that is up, checks the words of its first node, and takes it down.
///
/// # Errors
/// When the lab does not come up, a case does not get as far as it should, or words differ.
pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let compared = compare_in(lab, options);
    if options.keep {
        return compared;
    }
    let down = lab.down();
    compared?;
    down
}

fn compare_in(lab: &Lab, options: &Options) -> Result<()> {
    if lab.node(HANOK).agent().is_none() {
        lab.up()?;
        lab.start_nodes(&[HANOK])?;
    }
    let cluster = Cluster::of_lab(lab)?;
    let cases = options.cases();
    if options.peer {
        if lab.peer().processes().is_empty() {
            lab.peer().start()?;
        }
        renew(&cluster, &cases)?;
    }
    let space = cluster.space("golden-hanok")?;
    let checked = check(&space, &cases);
    space.clear()?;
    space.remove()?;
    checked
}

/// Lets the peer node run the cases, and writes what it says into the table.
fn renew(cluster: &Cluster, cases: &[Case]) -> Result<()> {
    let space = cluster.space("golden-peer")?;
    let said = on_node(&space, PEER, cases, &Settled)?;
    space.clear()?;
    space.remove()?;
    let (good, bad): (Vec<_>, Vec<_>) = cases
        .iter()
        .partition(|case| Settled.is_met(case, &said[&case.name]));
    let mut blocks = match kubelet_file().exists() {
        true => table::read(&kubelet_file())?,
        false => Blocks::new(),
    };
    let names: Vec<String> = cases::all().into_iter().map(|case| case.name).collect();
    blocks.retain(|name, _| names.contains(name));
    for case in good {
        blocks.insert(case.name.clone(), said[&case.name].clone());
    }
    table::write(&kubelet_file(), &blocks)?;
    // On a busy machine the moment that a case waits for may pass unseen; what was said of it before stays.
    for case in &bad {
        println!("{} on the kubelet node: {:#?}", case.name, said[&case.name]);
    }
    let unknown = |case: &&&Case| !blocks.contains_key(&case.name);
    let unknown = bad.iter().filter(unknown).count();
    ensure!(unknown == 0, "{unknown} cases did not get far enough");
    Ok(())
}

/// Lets a hanok node run the cases, and compares what it says with the table.
fn check(space: &Space<'_>, cases: &[Case]) -> Result<()> {
    let (blocks, known) = (table::read(&kubelet_file())?, Known::read(&known_file())?);
    let wanted = blocks
        .iter()
        .map(|(name, lines)| (name.clone(), known.of_hanok(name, lines)))
        .collect();
    let goal = Alike {
        known: &known,
        wanted: &wanted,
    };
    let said = on_node(space, HANOK, cases, &goal)?;
    let directory = paths::target().join("golden");
    fs::create_dir_all(&directory)?;
    table::write(&directory.join("hanok.txt"), &said)?;
    let mut text = String::new();
    for case in cases {
        let differences = goal.differences(case, &said[&case.name]);
        let lines = differences.iter().map(|line| format!("{line}\n"));
        if !differences.is_empty() {
            text.push_str(&format!("[{}]\n{}", case.name, lines.collect::<String>()));
        }
    }
    let as_known = |case: &&Case| {
        let block = blocks.get(&case.name);
        block.is_some_and(|block| goal.wanted.get(&case.name) != Some(block))
    };
    println!(
        "{} cases, of which {} differ as is known",
        cases.len(),
        cases.iter().filter(as_known).count()
    );
    match text.as_str() {
        "" => Ok(()),
        _ => bail!("the words differ (- the kubelet's, + hanok's):\n{text}"),
    }
}

/// What a node says of the cases.
fn on_node(space: &Space<'_>, node: &str, cases: &[Case], goal: &impl Goal) -> Result<Blocks> {
    let lab = space.lab()?;
    for object in cases::objects() {
        space.apply(&object)?;
    }
    let dir = |path: PathBuf| path.display().to_string();
    let texts = match node {
        PEER => vec![(dir(lab.dir().join("peer/kubelet")), "ROOT")],
        _ => vec![(dir(lab.node(node).dir().join("state")), "ROOT")],
    };
    let own = [
        (space.name().to_owned(), "NAMESPACE"),
        (lab.registry(), "REGISTRY"),
        // In the names of static pods.
        (format!("-{node}"), "-NODE"),
    ];
    let plain = Plain::new(node, texts.into_iter().chain(own).collect());
    // Every case but those about pulling finds its image.
    let warm = cases::images().map(|pod| pod.bound_to(node).manifest());
    for pod in &warm {
        space.apply(pod)?;
    }
    for pod in &warm {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        space.until_phase(name, "Succeeded")?;
    }
    let said = play::play(space, node, &plain, cases, goal);
    play::release(space, node, cases)?;
    said
}

/// The goal on a kubelet node: what the case waits for has come, and nothing comes after it.
struct Settled;

impl Goal for Settled {
    fn is_met(&self, case: &Case, said: &Lines) -> bool {
        case.until.iter().all(|line| play::begins(said, line))
    }

    fn quiet(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn patience(&self) -> Duration {
        patience(Duration::from_secs(120))
    }
}

/// The goal on a hanok node: the table's words.
struct Alike<'a> {
    known: &'a Known,
    wanted: &'a BTreeMap<String, Lines>,
}

impl Alike<'_> {
    fn differences(&self, case: &Case, said: &Lines) -> Vec<String> {
        match self.wanted.get(&case.name) {
            Some(wanted) => self.known.differences(&case.name, wanted, said),
            None => vec!["  the table has no such case".to_owned()],
        }
    }
}

impl Goal for Alike<'_> {
    fn is_met(&self, case: &Case, said: &Lines) -> bool {
        self.differences(case, said).is_empty()
    }

    fn quiet(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn patience(&self) -> Duration {
        patience(Duration::from_secs(90))
    }
}

fn kubelet_file() -> PathBuf {
    paths::workspace().join("e2e/golden/kubelet.txt")
}

fn known_file() -> PathBuf {
    paths::workspace().join("e2e/golden/known.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_words_and_every_known_difference_its_case() {
        let blocks = table::read(&kubelet_file()).expect("the table");
        let known = Known::read(&known_file()).expect("what is known");
        let names: Vec<String> = cases::all().into_iter().map(|case| case.name).collect();
        assert_eq!(names.len(), blocks.len());
        assert!(names.iter().all(|name| blocks.contains_key(name)));
        assert_eq!(known.stale(&blocks), Vec::<String>::new());
    }
}
