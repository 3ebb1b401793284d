//! A directory of the node that hostile images point at, and that is as before when it is dropped.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// The directory, with files of the names that image and device set-up know.
pub(crate) struct Canary {
    dir: tempfile::TempDir,
    before: Vec<(PathBuf, String)>,
}

impl Canary {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        for name in ["file", "null", "console", "ptmx", "sub/file"] {
            fs::write(dir.path().join(name), "canary").unwrap();
        }
        let before = listing(dir.path());
        Self { dir, before }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.before, listing(self.dir.path()));
        }
    }
}

fn listing(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap_or_default();
        let facts = format!("{:o} {} {} {text}", meta.mode(), meta.uid(), meta.gid());
        if meta.is_dir() {
            entries.extend(listing(&path));
        }
        entries.push((path, facts));
    }
    entries.sort();
    entries
}

/// Puts a link where something else was.
pub(crate) fn replace_by_link(path: &Path, target: &Path) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
    symlink(target, path).unwrap();
}

/// What is mounted on the node that has to do with these directories. Others mount and unmount beside a test.
pub(crate) fn mounts_of_the_node(directories: &[&Path]) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let names = directories
        .iter()
        .map(|dir| dir.file_name().unwrap().to_str().unwrap());
    let names: Vec<&str> = names.collect();
    let lines = table
        .lines()
        .filter(|line| names.iter().any(|name| line.contains(name)));
    lines.map(str::to_owned).collect()
}
