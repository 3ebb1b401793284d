//! Who is in a cgroup and below it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::oci::{OciError, Result};

/// Whoever is in a container's cgroup is killed with it, so nobody may be there before it.
pub(super) fn check_unused(directory: &Path) -> Result<()> {
    let count = match processes(directory) {
        Err(OciError::Io { source, .. }) if is_gone(&source) => 0,
        found => found?.len(),
    };
    if count == 0 {
        return Ok(());
    }
    let directory = directory.display();
    let message = format!("cgroup {directory} is in use: processes in it: {count}");
    Err(OciError::Config(message))
}

/// Process ids in a directory and below it.
pub(in crate::oci) fn processes(directory: &Path) -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        match look(&next, &mut pids, &mut left) {
            // Nobody is in one that goes just now. Whose threads are in a threaded one is told by the nearest one above
            // that is not, which was looked at: the first would have been an error.
            Err(OciError::Io { source, .. })
                if next != directory && (is_gone(&source) || is_threaded(&source)) => {}
            looked => looked?,
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// Adds who is in one directory, and the directories in it.
fn look(directory: &Path, pids: &mut Vec<i32>, left: &mut Vec<PathBuf>) -> Result<()> {
    let file = directory.join("cgroup.procs");
    let text = fs::read_to_string(&file).map_err(OciError::io("read", &file))?;
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(directory).map_err(OciError::io("read", directory))? {
        let entry = entry.map_err(OciError::io("read", directory))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            left.push(entry.path());
        }
    }
    Ok(())
}

/// What reading says of a cgroup that was removed, before and after its file was opened.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// What reading says of a cgroup that has threads and not processes.
fn is_threaded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_cannot_be_read_is_not_taken_for_an_unused_one() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path();
        check_unused(&top.join("absent")).unwrap();
        // As one looks that is being removed.
        fs::create_dir(top.join("gone")).unwrap();
        check_unused(&top.join("gone")).unwrap();
        fs::write(top.join("cgroup.procs"), "7\n").unwrap();
        assert_eq!(processes(top).unwrap(), [7]);
        fs::write(top.join("cgroup.procs"), "").unwrap();
        check_unused(top).unwrap();
        fs::create_dir_all(top.join("odd/cgroup.procs")).unwrap();
        assert!(processes(top).is_err());
        assert!(check_unused(top).is_err() && check_unused(&top.join("odd")).is_err());
    }

    #[test]
    fn root_threads_in_a_cgroup_of_their_own_hide_nobody() {
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let is_unified = |mount: &&Path| mount.join("cgroup.procs").exists();
        let mount = mounts.into_iter().find(is_unified).unwrap();
        let top = mount.join(format!("hanok-oci-threads-{}", std::process::id()));
        let (domain, threads) = (top.join("a"), top.join("a/b"));
        fs::create_dir_all(&threads).unwrap();
        fs::write(threads.join("cgroup.type"), "threaded").unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let moved = fs::write(domain.join("cgroup.procs"), &pid)
            .and_then(|()| fs::write(threads.join("cgroup.threads"), &pid));
        let found = processes(&top);
        let checked = [&top, &domain, &threads].map(|one| check_unused(one).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        for directory in [&threads, &domain, &top] {
            fs::remove_dir(directory).unwrap();
        }
        moved.unwrap();
        assert_eq!(found.unwrap(), [pid.parse::<i32>().unwrap()]);
        assert_eq!(checked, [true; 3]);
    }
}
