//! The golden table: what a kubelet node says of every case, and what a hanok node says otherwise, with the reason.
//!
//! `e2e/golden/kubelet.txt` is written by `make golden PEER=kubelet`; a case's name stands on a line of its own, what
//! is said of it below it, indented. `e2e/golden/known.txt` is written by hand:
//!
//! ```text
//! # why
//! [case]          or [beginning*] for all cases whose names begin so
//! - what the kubelet says
//! + what hanok says instead
//! ~ the beginning of lines that a node may say or not
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::words::Lines;

/// What is said of each case.
pub(super) type Blocks = BTreeMap<String, Lines>;

/// Reads blocks.
///
/// # Errors
/// When the file cannot be read, or begins with an indented line.
pub(super) fn read(path: &Path) -> Result<Blocks> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut blocks = Blocks::new();
    let mut name = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("    "), &name) {
            (None, _) => name = Some(line.to_owned()),
            (Some(said), Some(name)) => {
                let block: &mut Lines = blocks.entry(name.clone()).or_default();
                block.insert(said.to_owned());
            }
            (Some(said), None) => bail!("{said:?} is said of no case"),
        }
    }
    Ok(blocks)
}

/// Writes blocks.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn write(path: &Path, blocks: &Blocks) -> Result<()> {
    let block = |(name, lines): (&String, &Lines)| {
        let lines: String = lines.iter().map(|line| format!("    {line}\n")).collect();
        format!("{name}\n{lines}")
    };
    let text = blocks.iter().map(block).collect::<Vec<_>>().join("\n");
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// What is known to differ.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<String, Difference>);

#[derive(Debug, Default)]
struct Difference {
    of_kubelet: Lines,
    of_hanok: Lines,
    chance: Vec<String>,
}

impl Known {
    /// Reads them.
    ///
    /// # Errors
    /// When the file cannot be read or a line is none of its kinds.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut known = Self::default();
        let mut name = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(inner) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                inner.clone_into(&mut name);
                continue;
            }
            if line.starts_with("# ") {
                continue;
            }
            let difference = known.0.entry(name.clone()).or_default();
            match line.split_once(' ') {
                Some(("-", said)) => drop(difference.of_kubelet.insert(said.to_owned())),
                Some(("+", said)) => drop(difference.of_hanok.insert(said.to_owned())),
                Some(("~", start)) => difference.chance.push(start.to_owned()),
                _ => bail!("{line:?} is no known difference"),
            }
        }
        Ok(known)
    }

    /// The sections that concern a case.
    fn of<'a>(&'a self, case: &'a str) -> impl Iterator<Item = &'a Difference> {
        let sections = self.0.iter().filter(move |(name, _)| concerns(name, case));
        sections.map(|(_, difference)| difference)
    }

    /// What a hanok node has to say, given what the kubelet says.
    pub(super) fn of_hanok(&self, case: &str, kubelet: &Lines) -> Lines {
        let mut lines = kubelet.clone();
        for difference in self.of(case) {
            lines.retain(|line| !difference.of_kubelet.contains(line));
            lines.extend(difference.of_hanok.iter().cloned());
        }
        lines
    }

    /// What differs: `-` is missing, `+` should not be there.
    pub(super) fn differences(&self, case: &str, wanted: &Lines, said: &Lines) -> Vec<String> {
        let by_chance = |line: &&String| {
            let mut starts = self.of(case).flat_map(|known| &known.chance);
            !starts.any(|start| line.starts_with(start.as_str()))
        };
        let missing = wanted.difference(said).filter(by_chance);
        let extra = said.difference(wanted).filter(by_chance);
        let missing = missing.map(|line| format!("- {line}"));
        missing
            .chain(extra.map(|line| format!("+ {line}")))
            .collect()
    }

    /// Lines that are said to be the kubelet's and are not, and sections about no case.
    #[cfg(test)]
    pub(super) fn stale(&self, blocks: &Blocks) -> Vec<String> {
        let mut stale = Vec::new();
        for (name, difference) in &self.0 {
            let mut said = Lines::new();
            for (_, lines) in blocks.iter().filter(|(case, _)| concerns(name, case)) {
                said.extend(lines.iter().cloned());
            }
            let gone = difference.of_kubelet.difference(&said);
            stale.extend(gone.map(|line| format!("{name}: {line}")));
            if said.is_empty() {
                stale.push(name.clone());
            }
        }
        stale
    }
}

/// Whether a section is about a case.
fn concerns(section: &str, case: &str) -> bool {
    match section.strip_suffix('*') {
        Some(start) => case.starts_with(start),
        None => section == case,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Lines {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_known_difference_takes_the_place_of_the_kubelets_words() {
        let text = "# why\n[a]\n- one\n+ eins\n~ maybe\n";
        let known = Known::parse(text).expect("known");
        let wanted = known.of_hanok("a", &lines(&["one", "two"]));
        assert_eq!(wanted, lines(&["eins", "two"]));
        let said = lines(&["eins", "maybe this", "three"]);
        assert_eq!(known.differences("a", &wanted, &said), ["- two", "+ three"]);
        assert_eq!(known.of_hanok("b", &lines(&["one"])), lines(&["one"]));
        assert!(Known::parse("what").is_err());
        let many = Known::parse("# why\n[a*]\n- one\n").expect("known");
        assert!(many.of_hanok("ab", &lines(&["one"])).is_empty());
        assert_eq!(many.of_hanok("ba", &lines(&["one"])), lines(&["one"]));
        let blocks = Blocks::from([("b".to_owned(), lines(&["one"]))]);
        assert_eq!(many.stale(&blocks), ["a*: one", "a*"]);
    }

    #[test]
    fn blocks_are_read_as_they_are_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("golden.txt");
        let blocks = Blocks::from([
            ("a".to_owned(), lines(&["one", "two"])),
            ("b".to_owned(), lines(&["three"])),
        ]);
        write(&path, &blocks).expect("written");
        assert_eq!(read(&path).expect("read"), blocks);
    }
}
