//! Whether pods can have users of their own on this machine.
//!
//! What matters is not a version but whether it works: the shim is asked to make a user namespace and to mount an overlay
//! of id-mapped layers, where the layers of containers are.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;

/// How long the attempt may take; it is a matter of milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer, once it was asked for.
#[derive(Debug)]
pub(crate) struct UserSupport {
    shim: PathBuf,
    directory: PathBuf,
    answer: OnceCell<Result<(), String>>,
}

impl UserSupport {
    /// Layers are on the filesystem of `directory`.
    pub(super) fn new(shim: PathBuf, directory: PathBuf) -> Self {
        UserSupport {
            shim,
            directory,
            answer: OnceCell::new(),
        }
    }

    /// Tries it at the first call. The error says what is missing.
    pub(crate) async fn look(&self) -> Result<(), String> {
        self.answer.get_or_init(|| self.attempt()).await.clone()
    }

    async fn attempt(&self) -> Result<(), String> {
        let attempt = Command::new(&self.shim)
            .arg("check-user-namespaces")
            .arg("--state-dir")
            .arg(&self.directory)
            .env_clear()
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(PATIENCE, attempt).await {
            Err(_) => Err("the attempt to make one took too long".to_owned()),
            Ok(Err(error)) => Err(format!("cannot run {}: {error}", self.shim.display())),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let words = String::from_utf8_lossy(&output.stderr);
                let words = words.trim().trim_start_matches("hanok-shim: ");
                Err(words.to_owned())
            }
        }
    }
}
