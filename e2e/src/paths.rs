//! Where the workspace, its target directory and the built programs are.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// The root of the workspace that this crate was built in.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The target directory: `CARGO_TARGET_DIR`, or `target` in the workspace.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace().join(dir),
        None => workspace().join("target"),
    }
}

/// A Go program that `e2e/controlplane/build.sh` has built.
///
/// # Errors
/// When it is not there.
pub fn go_program(name: &str) -> Result<PathBuf> {
    existing(target().join("bin").join(name))
}

/// The `hanok` program under test: `HANOK`, or the release build.
///
/// # Errors
/// When it is not there.
pub fn hanok() -> Result<PathBuf> {
    match std::env::var_os("HANOK") {
        Some(path) => existing(path.into()),
        None => existing(target().join("release/hanok")),
    }
}

/// Debian's image registry: installed, or unpacked by `e2e/install.sh`.
///
/// # Errors
/// When it is not there.
pub fn registry() -> Result<PathBuf> {
    installed_or_unpacked("/usr/bin/docker-registry")
}

/// Debian's web server: installed, or unpacked by `e2e/install.sh`.
///
/// # Errors
/// When it is not there.
pub fn nginx() -> Result<PathBuf> {
    installed_or_unpacked("/usr/sbin/nginx")
}

/// The static program that most story images hold.
///
/// # Errors
/// When it is not there.
pub fn testapp() -> Result<PathBuf> {
    existing(target().join("x86_64-unknown-linux-gnu/shim/hanok-testapp"))
}

fn installed_or_unpacked(installed: &str) -> Result<PathBuf> {
    let installed = PathBuf::from(installed);
    match installed.file_name() {
        Some(name) if !installed.exists() => existing(target().join("bin").join(name)),
        _ => Ok(installed),
    }
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    ensure!(
        path.exists(),
        "{} does not exist; run `make build` first",
        path.display()
    );
    Ok(path)
}
