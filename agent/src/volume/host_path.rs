//! hostPath: a path of the node as it is, once it is of the type that the pod asks for.

use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Checks the path and makes what the type says is made. The error is the kubelet's.
pub(super) fn prepare(path: &Path, kind: &str) -> Result<(), String> {
    if !path.is_absolute()
        || path
            .components()
            .any(|part| part == std::path::Component::ParentDir)
    {
        return Err(format!(
            "invalid hostPath {:?}: it must be absolute, without \"..\"",
            path.display()
        ));
    }
    match kind {
        // A runtime makes a missing source of a bind mount; so a path without a type always is one.
        "" if !path.exists() => make_dir(path),
        "" => Ok(()),
        "DirectoryOrCreate" => {
            if !path.exists() {
                make_dir(path)?;
            }
            check(path, kind)
        }
        "FileOrCreate" => {
            if !path.exists() {
                make_file(path)?;
            }
            check(path, kind)
        }
        _ => check(path, kind),
    }
}

fn make_dir(path: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| format!("mkdir {}: {error}", path.display()))
}

/// Parents are not made: the API says so.
fn make_file(path: &Path) -> Result<(), String> {
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)
    {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(format!("open {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

fn check(path: &Path, kind: &str) -> Result<(), String> {
    let found = std::fs::metadata(path).map(|meta| meta.file_type());
    let is = |test: fn(&std::fs::FileType) -> bool| found.as_ref().is_ok_and(test);
    let (right, noun) = match kind {
        "Directory" | "DirectoryOrCreate" => (is(std::fs::FileType::is_dir), "a directory"),
        "File" | "FileOrCreate" => (is(std::fs::FileType::is_file), "a file"),
        "Socket" => (is(|kind| kind.is_socket()), "a socket file"),
        "CharDevice" => (is(|kind| kind.is_char_device()), "a character device"),
        "BlockDevice" => (is(|kind| kind.is_block_device()), "a block device"),
        _ => return Err(format!("{kind} is an invalid volume type")),
    };
    if right {
        return Ok(());
    }
    let shown = path.display();
    Err(match found {
        Ok(found) => format!(
            "hostPath type check failed: {shown} is not {noun}, it's a {}",
            kind_of(&found)
        ),
        Err(error) => {
            let cause = match error.kind() {
                ErrorKind::NotFound => format!("path \"{shown}\" does not exist"),
                _ => error.to_string(),
            };
            format!(
                "hostPath type check failed, {shown} is not {noun}, unable to determine its type: {cause}"
            )
        }
    })
}

/// What is there, as the API names the types of paths.
fn kind_of(found: &std::fs::FileType) -> &'static str {
    match () {
        () if found.is_dir() => "Directory",
        () if found.is_file() => "File",
        () if found.is_socket() => "Socket",
        () if found.is_char_device() => "CharDevice",
        () if found.is_block_device() => "BlockDevice",
        () => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_checked_in_the_kubelets_words() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, kind, noun) in [
            (dir.path(), "Directory", None),
            (dir.path(), "", None),
            (&file, "File", None),
            (&socket, "Socket", None),
            (Path::new("/dev/null"), "CharDevice", None),
            (&file, "Directory", Some("a directory, it's a File")),
            (dir.path(), "File", Some("a file, it's a Directory")),
            (&file, "Socket", Some("a socket file, it's a File")),
            (
                &socket,
                "CharDevice",
                Some("a character device, it's a Socket"),
            ),
            (
                Path::new("/dev/null"),
                "BlockDevice",
                Some("a block device, it's a CharDevice"),
            ),
            (&file, "DirectoryOrCreate", Some("a directory, it's a File")),
        ] {
            let wanted = noun.map_or(Ok(()), |noun| {
                Err(format!(
                    "hostPath type check failed: {} is not {noun}",
                    path.display()
                ))
            });
            assert_eq!(prepare(path, kind), wanted, "{path:?} {kind}");
        }
    }

    #[test]
    fn what_is_missing_is_made_when_the_type_says_so() {
        let dir = tempfile::tempdir().unwrap();
        prepare(&dir.path().join("a/b"), "DirectoryOrCreate").unwrap();
        assert!(dir.path().join("a/b").is_dir());
        prepare(&dir.path().join("f"), "FileOrCreate").unwrap();
        assert!(dir.path().join("f").is_file());
        assert!(prepare(&dir.path().join("no/f"), "FileOrCreate").is_err());
        assert!(prepare(&dir.path().join("no"), "Directory").is_err());
        assert!(prepare(Path::new("/a/../b"), "").is_err());
        assert!(prepare(Path::new("a"), "").is_err());
    }
}
