//! The lab's image registry: Debian's `docker-registry`, over plain HTTP, in the control plane's namespace.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::Lab;
use crate::paths;
use crate::process::Spawn;

const NAME: &str = "registry";

/// Where nodes read that this registry is asked over plain HTTP (`hosts.toml`, as containerd has it).
pub(super) fn hosts_directory(lab: &Lab) -> PathBuf {
    lab.dir().join("certs.d")
}

/// Starts it on an empty store; [`crate::image::publish`] waits for it.
pub(super) fn start(lab: &Lab) -> Result<()> {
    let store = lab.dir().join(NAME);
    fs::create_dir_all(&store)?;
    let hosts = hosts_directory(lab).join(lab.registry());
    fs::create_dir_all(&hosts)?;
    fs::write(
        hosts.join("hosts.toml"),
        format!("server = \"http://{}\"\n", lab.registry()),
    )?;
    let config = lab.dir().join("registry.yaml");
    fs::write(
        &config,
        format!(
            "version: 0.1\nlog: {{ level: warn }}\n\
             storage:\n  filesystem: {{ rootdirectory: {:?} }}\n  delete: {{ enabled: true }}\n\
             http: {{ addr: {:?} }}\n",
            store.display(),
            lab.registry()
        ),
    )?;
    lab.processes().spawn(&Spawn {
        name: NAME,
        netns: Some(&lab.netns("cp")),
        program: paths::registry()?,
        args: vec!["serve".into(), config.display().to_string()],
        env: vec![("OTEL_TRACES_EXPORTER".into(), "none".into())],
    })?;
    Ok(())
}

/// Sends it a signal.
pub(super) fn signal(lab: &Lab, signal: Signal) -> Result<()> {
    lab.processes()
        .running(NAME)
        .context("the registry does not run")?
        .signal(signal)
}
