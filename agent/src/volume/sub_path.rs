//! Parts of volumes that containers mount: what is missing is made.
//!
//! Containers write in the volume while this looks at it. Every step goes by descriptors below its root, and the shim
//! resolves the path once more, in the same way, when it mounts: what was checked here and is something else there
//! still lies in the volume.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;

use super::fs::resolved;

/// Makes directories where there is nothing, with the mode of the volume's own. The error is what the user reads.
pub fn prepare(volume: &Path, sub_path: &str) -> Result<(), String> {
    let relative = Path::new(sub_path);
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !relative.components().all(inside) {
        return Err(format!(
            "{sub_path:?} must be a relative path without \"..\""
        ));
    }
    make(volume, relative).map_err(|error| match error {
        Errno::XDEV => format!("{sub_path:?} leads out of the volume"),
        error => format!("{sub_path:?}: {}", std::io::Error::from(error)),
    })
}

fn make(volume: &Path, relative: &Path) -> rustix::io::Result<()> {
    let root = openat(CWD, volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match beneath(root.as_fd(), relative) {
        Err(Errno::NOENT) => {}
        found => return found.map(drop),
    }
    let mode = Mode::from_raw_mode(fstat(&root)?.st_mode & 0o7777);
    let mut walked = PathBuf::new();
    let mut parent = root
        .as_fd()
        .try_clone_to_owned()
        .map_err(|_| Errno::MFILE)?;
    for part in relative.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        walked.push(name);
        let next = match beneath(root.as_fd(), &walked) {
            Err(Errno::NOENT) => make_dir(parent.as_fd(), Path::new(name), mode)?,
            found => found?,
        };
        parent = next;
    }
    Ok(())
}

/// Opens what is there; `EXDEV` when it lies outside of the root.
fn beneath(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolved(root, path, OFlags::PATH | OFlags::CLOEXEC, rules)
}

/// A new directory with exactly this mode; a link to nothing is an error.
fn make_dir(parent: BorrowedFd<'_>, name: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty())?;
    fchmod(&made, mode)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn every_directory_that_is_made_has_the_mode_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        fs::create_dir(&volume).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o2777)).unwrap();
        prepare(&volume, "a/./b/c").unwrap();
        prepare(&volume, "a/b/c").unwrap();
        for path in ["a", "a/b", "a/b/c"] {
            let mode = fs::metadata(volume.join(path))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o7777, 0o2777, "{path}");
        }
    }

    #[test]
    fn no_link_leads_out_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        fs::create_dir_all(volume.join("real")).unwrap();
        symlink("/etc", volume.join("out")).unwrap();
        symlink(dir.path(), volume.join("up")).unwrap();
        symlink("../new", volume.join("dangling")).unwrap();
        symlink("real", volume.join("link")).unwrap();
        for path in [
            "../x",
            "/etc",
            "out",
            "out/passwd",
            "up/new",
            "dangling",
            "dangling/x",
            "a/../../x",
        ] {
            assert!(prepare(&volume, path).is_err(), "{path}");
        }
        assert!(!dir.path().join("new").exists());
        prepare(&volume, "link/inside").unwrap();
        assert!(volume.join("real/inside").is_dir());
    }

    #[test]
    fn a_directory_that_is_exchanged_all_the_time_never_lets_anything_be_made_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("v"), dir.path().join("outside"));
        for made in [&volume, &outside, &volume.join("real")] {
            fs::create_dir(made).unwrap();
        }
        symlink("../outside", volume.join("link")).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let (one, other) = (volume.join("real"), volume.join("link"));
                while !done.load(Ordering::Relaxed) {
                    let _ = rustix::fs::renameat_with(CWD, &one, CWD, &other, flags);
                }
            });
            for number in 0..2000 {
                let _ = prepare(&volume, &format!("real/{number}/x"));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
