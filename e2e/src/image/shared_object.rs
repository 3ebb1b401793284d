//! The shared objects of Debian's dynamically linked programs, so that an image can hold such a program.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::rootfs::Rootfs;
use crate::process::run;

impl Rootfs {
    /// Adds a program of the machine with the loader and the libraries that it is linked to, each where the loader
    /// looks for it.
    ///
    /// # Errors
    /// When `ldd` cannot tell them, or one of them is missing.
    pub(super) fn linked_program(mut self, path: &str, from: &Path) -> Result<Self> {
        let text = run("ldd", &[&from.display().to_string()])?;
        for object in objects(&text).with_context(|| from.display().to_string())? {
            let inside = object.trim_start_matches('/');
            for dir in Path::new(inside).ancestors().skip(1) {
                self = self.directory_once(&dir.display().to_string());
            }
            self = self.program_once(inside, Path::new(object));
        }
        Ok(self.program(path, from))
    }
}

/// Paths in the output of `ldd`: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader. The kernel's own
/// object has no path.
fn objects(ldd: &str) -> Result<Vec<&str>> {
    let mut paths = Vec::new();
    for line in ldd.lines().map(str::trim) {
        ensure!(!line.ends_with("not found"), "{line}");
        let target = line.split_once(" => ").map_or(line, |(_, path)| path);
        let path = target.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_and_libraries_are_found_and_a_missing_one_is_an_error() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibz.so.1 => /lib/x/libz.so.1 (0x1)\n\t/lib64/ld.so (0x2)\n";
        assert_eq!(
            objects(text).expect("paths"),
            ["/lib/x/libz.so.1", "/lib64/ld.so"]
        );
        assert!(objects("\tlibq.so.1 => not found\n").is_err());
    }
}
