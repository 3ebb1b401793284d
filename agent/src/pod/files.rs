//! The files that the node writes for a pod: hosts, resolv.conf, termination messages, and links to logs.
//!
//! ```text
//! PODS_DIR/UID/etc-hosts                  mounted at /etc/hosts
//! PODS_DIR/UID/resolv.conf                mounted at /etc/resolv.conf
//! PODS_DIR/UID/containers/NAME/ATTEMPT    mounted at the termination message path
//! LINKS_DIR/POD_NS_NAME-ID.log            link to the log file of one run
//! ```
//! The functions that do I/O block; callers run them by [`off_the_loop`]. None of the files is durable:
//! they are written anew whenever a container starts.

pub mod dns;
pub mod hosts;
pub mod termination;

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hanok_runtime::api::PodUid;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::spawn_blocking;

/// Longest file name that file systems take.
pub const NAME_MAX: usize = 255;

/// Runs work that blocks beside the event loop. A runtime with one thread has no side: there it runs in place, and
/// what depends on its end happens in one order only. None when it panicked.
pub async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Some(work()),
        _ => spawn_blocking(work).await.ok(),
    }
}

/// Writes a file with that mode unless it has that content already.
pub fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == content.as_bytes()) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // In place: the file may be mounted in containers, which would keep the old one after a rename.
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Name of the link to one run's log: `POD_NAMESPACE_CONTAINER-ID.log`, cut to what fits.
pub fn log_link(directory: &Path, pod: (&str, &str), container: &str, id: &str) -> PathBuf {
    const SUFFIX: &str = ".log";
    let (namespace, name) = pod;
    let mut link = format!("{name}_{namespace}_{container}-{id}");
    link.truncate(NAME_MAX - SUFFIX.len());
    directory.join(link + SUFFIX)
}

/// Makes the link; one that is there already is replaced.
pub fn link_log(link: &Path, target: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent)?;
    }
    match symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(link)?;
            symlink(target, link)
        }
        result => result,
    }
}

/// Removes a pod's log directory and these links to it. Absent is success.
pub fn remove_logs(log_dir: &Path, links: &[PathBuf]) -> io::Result<()> {
    for link in links {
        ignore_absent(fs::remove_file(link))?;
    }
    ignore_absent(fs::remove_dir_all(log_dir))
}

/// The links that lead into a log directory.
pub fn links_into(log_dir: &Path, links_dir: &Path) -> Vec<PathBuf> {
    let links = fs::read_dir(links_dir).into_iter().flatten().flatten();
    let links = links.map(|entry| entry.path());
    links
        .filter(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(log_dir)))
        .collect()
}

/// The links into the directory of all logs that lead nowhere and have this age at least: those of containers whose
/// records were lost. A younger one may be waiting for its log.
pub fn dangling_links(log_dir: &Path, links_dir: &Path, age: Duration) -> Vec<PathBuf> {
    let leads_nowhere =
        |link: &PathBuf| fs::metadata(link).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    let is_old = |link: &PathBuf| {
        let made = fs::symlink_metadata(link).and_then(|meta| meta.modified());
        made.is_ok_and(|made| made.elapsed().is_ok_and(|since| since >= age))
    };
    let mut links = links_into(log_dir, links_dir);
    links.retain(|link| leads_nowhere(link) && is_old(link));
    links
}

/// Removes the log files of one run, rotated ones too, and the link to them.
pub fn remove_run_logs(log: &Path, link: &Path) -> io::Result<()> {
    ignore_absent(fs::remove_file(link))?;
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else {
        return Ok(());
    };
    let prefix = name.as_encoded_bytes();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(prefix) {
            ignore_absent(fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// The restart count after the runs whose logs are in a container's log directory; 0 when there are none.
pub fn attempt_of_logs(directory: &Path) -> u32 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let count = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let (number, rest) = name.to_str()?.split_once('.')?;
        let is_log = rest.starts_with("log") && number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse::<u32>().ok().filter(|_| is_log)
    };
    let newest = files.filter_map(count).max();
    newest.map_or(0, |newest| newest.saturating_add(1))
}

/// UIDs and paths of the pods that have a log directory.
pub fn log_dirs(log_dir: &Path) -> Vec<(PodUid, PathBuf)> {
    let entries = fs::read_dir(log_dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let (_, uid) = name.to_str()?.rsplit_once('_')?;
            Some((PodUid(uid.to_owned()), entry.path()))
        })
        .collect()
}

/// Absent is success.
fn ignore_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_count_goes_on_after_the_newest_log() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(attempt_of_logs(&dir.path().join("absent")), 0);
        fs::create_dir(dir.path().join("7.log")).expect("a directory");
        // Files that come one after the other, and the count with each.
        let table = [
            ("a.log.rotated", 0),
            ("12log.rotated", 0),
            ("old.23.log", 0),
            ("-42.log", 0),
            ("+42.log", 0),
            ("9.txt", 0),
            ("92233720368547758089223372036854775808.log.rotated", 0),
            ("0.log.20250101-000000", 1),
            ("0.log", 1),
            ("2.log", 3),
            ("3.log.20250101-000000.gz", 4),
            ("23a.log", 4),
            ("145.log.log.rotated", 146),
        ];
        for (name, want) in table {
            fs::write(dir.path().join(name), "").expect("a file");
            assert_eq!(attempt_of_logs(dir.path()), want, "{name}");
        }
    }

    #[test]
    fn a_link_fits_into_a_file_name_and_replaces_an_old_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let long = "n".repeat(253);
        let link = log_link(dir.path(), ("default", &long), "c", "abc");
        assert_eq!(link.file_name().map(|name| name.len()), Some(NAME_MAX));
        link_log(&link, Path::new("/a")).expect("a link");
        link_log(&link, Path::new("/b")).expect("a link");
        assert_eq!(fs::read_link(&link).expect("a link"), Path::new("/b"));
    }

    #[test]
    fn removing_a_pods_logs_takes_its_links_and_no_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let (logs, links) = (dir.path().join("pods/ns_a_1"), dir.path().join("links"));
        fs::create_dir_all(&logs).expect("a directory");
        link_log(&links.join("mine"), &logs.join("c/0.log")).expect("a link");
        link_log(
            &links.join("other"),
            Path::new("/var/log/pods/ns_a_12/c/0.log"),
        )
        .expect("a link");
        let mine = links_into(&logs, &links);
        remove_logs(&logs, &mine).expect("removed");
        remove_logs(&logs, &mine).expect("removed twice");
        let left: Vec<_> = fs::read_dir(&links).expect("links").flatten().collect();
        assert_eq!(left.len(), 1);
        assert!(!logs.exists());
    }

    #[test]
    fn links_that_lead_nowhere_are_found_when_they_are_old() {
        let dir = tempfile::tempdir().expect("a directory");
        let (logs, links) = (dir.path().join("pods"), dir.path().join("links"));
        fs::create_dir_all(logs.join("ns_a_1/c")).expect("a directory");
        fs::write(logs.join("ns_a_1/c/0.log"), "").expect("a file");
        link_log(&links.join("good"), &logs.join("ns_a_1/c/0.log")).expect("a link");
        link_log(&links.join("lost"), &logs.join("ns_b_2/c/0.log")).expect("a link");
        link_log(&links.join("foreign"), Path::new("/nowhere/0.log")).expect("a link");
        let found = |age| dangling_links(&logs, &links, age);
        assert_eq!(found(Duration::ZERO), [links.join("lost")]);
        assert!(found(Duration::from_secs(60)).is_empty());
    }

    #[test]
    fn removing_one_runs_logs_leaves_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["0.log", "0.log.20250101-000000.gz", "1.log", "10.log"] {
            fs::write(dir.path().join(name), "").expect("a file");
        }
        remove_run_logs(&dir.path().join("0.log"), &dir.path().join("no-link")).expect("removed");
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .expect("a directory")
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["1.log", "10.log"]);
    }
}
