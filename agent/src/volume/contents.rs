//! Files of volumes that the node itself reads.
//!
//! Containers write in the volume while this looks at it: no link leads out of it, what is no file is never waited for,
//! and no more is read than somebody is ready to take.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat};

use super::fs::resolved;

/// Reads a file of at most so many bytes.
pub fn read(volume: &Path, path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    let found = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, volume, found, Mode::empty())?;
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // A container can make a node of any device, and some do things when they are only opened: a watchdog resets the
    // machine. So it is seen what this is before it is opened.
    let found = File::from(resolved(root.as_fd(), path, found, rules)?);
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    // The lease of somebody else is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, itself, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(largest + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > largest) {
        let message = format!("it has more than {largest} bytes");
        return Err(io::Error::other(message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, mknodat};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_small_file_inside_the_volume_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        fs::create_dir_all(volume.join("dir")).unwrap();
        fs::write(volume.join("dir/file"), "1234").unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        symlink("dir/file", volume.join("link")).unwrap();
        symlink("../secret", volume.join("out")).unwrap();
        symlink("/etc/passwd", volume.join("absolute")).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, volume.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let read = |path: &str, largest| read(&volume, Path::new(path), largest);
        assert_eq!(read("dir/file", 4).unwrap(), b"1234");
        assert_eq!(read("link", 4).unwrap(), b"1234");
        for path in [
            "out",
            "absolute",
            "../secret",
            "/etc/passwd",
            "dir",
            "fifo",
            "",
        ] {
            assert!(read(path, 1 << 20).is_err(), "{path}");
        }
        let large = read("dir/file", 3).unwrap_err().to_string();
        assert_eq!(large, "it has more than 3 bytes");
        let absent = read("dir/nothing", 4).unwrap_err().kind();
        assert_eq!(absent, io::ErrorKind::NotFound);
    }

    #[test]
    fn root_a_device_is_refused_before_it_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        // No driver has these numbers, so the kernel's error would tell that somebody opened the node.
        let nobodys = rustix::fs::makedev(4095, 1);
        for (name, kind) in [
            ("char", FileType::CharacterDevice),
            ("block", FileType::BlockDevice),
            ("fifo", FileType::Fifo),
            ("socket", FileType::Socket),
        ] {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, dir.path().join(name), kind, mode, nobodys).unwrap();
            symlink(name, dir.path().join("link")).unwrap();
            for path in [name, "link"] {
                let error = read(dir.path(), Path::new(path), 1).unwrap_err();
                assert_eq!(error.to_string(), "it is no file", "{name}");
            }
            fs::remove_file(dir.path().join("link")).unwrap();
        }
    }
}
