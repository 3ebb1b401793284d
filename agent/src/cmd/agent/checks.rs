//! What keeps the agent from starting, told before anything is touched.

use anyhow::bail;

use crate::client::ApiServer;
use crate::config::Settings;
use crate::node::machine;

/// Checks this machine against the configuration.
pub(super) fn check(settings: &Settings) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("hanok agent makes namespaces, mounts and cgroups: run it as root");
    }
    let swap = machine::look(&settings.paths.root_dir).swap;
    if settings.kubelet.fail_swap_on && swap > 0 {
        bail!(
            "field failSwapOn (--fail-swap-on): true, and this machine has {} MiB of swap on: turn it off, or set false",
            swap >> 20
        );
    }
    if settings.kubelet.fail_cgroup_v1 && !is_cgroup_v2() {
        bail!(
            "field failCgroupV1: true, and this machine's cgroups are version 1: boot with version 2, or set false"
        );
    }
    if settings.kubelet.cgroup_driver == "systemd" {
        tracing::warn!(
            "cgroupDriver systemd: cgroups are made directly below this agent's own, which systemd leaves alone"
        );
    }
    if settings
        .kubelet
        .authentication
        .x509
        .client_ca_file
        .is_empty()
    {
        tracing::warn!(
            "authentication.x509.clientCAFile (--client-ca-file) is not set: the API server's certificate is not accepted, so kubectl logs and exec fail"
        );
    }
    Ok(())
}

/// Only version 2 has this file at its root.
fn is_cgroup_v2() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A certificate for another node would be refused by the Node authorizer, request by request.
pub(super) fn certificate_is_ours(settings: &Settings, server: &ApiServer) -> anyhow::Result<()> {
    match &server.certified_node {
        Some(node) if *node != settings.node_name => bail!(
            "{}: its certificate is for node {node:?} and this node is {:?}: give --hostname-override={node}, or this node's own kubeconfig",
            settings.kubeconfig.display(),
            settings.node_name
        ),
        Some(_) => Ok(()),
        None => {
            tracing::warn!(
                "{}: no certificate for system:node:{}: what this agent may do is not limited to its own node",
                settings.kubeconfig.display(),
                settings.node_name
            );
            Ok(())
        }
    }
}
