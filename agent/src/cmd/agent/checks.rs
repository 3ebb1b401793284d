//! What keeps the agent from starting, told before anything is touched.

use std::path::Path;

use anyhow::bail;
use jiff::Timestamp;

use crate::client::ApiServer;
use crate::config::Settings;
use crate::embedded;
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
    embedded::driver_is_here(settings.cgroup_driver)?;
    let authentication = &settings.kubelet.authentication;
    if authentication.x509.client_ca_file.is_empty() {
        tracing::warn!(
            "authentication.x509.clientCAFile (--client-ca-file) is not set: {}",
            match &settings.cluster {
                Some(_) =>
                    "the API server's certificate is not accepted, so kubectl logs and exec fail",
                None if authentication.anonymous.enabled => "every caller is anonymous",
                None => "the kubelet API lets nobody in",
            }
        );
    }
    Ok(())
}

/// Only version 2 has this file at its root.
pub(super) fn is_cgroup_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A certificate for another node would be refused by the Node authorizer, request by request, and one that has
/// expired by everybody.
pub(super) fn certificate_is_ours(
    settings: &Settings,
    kubeconfig: &Path,
    server: &ApiServer,
) -> anyhow::Result<()> {
    let path = kubeconfig.display();
    if let Some(facts) = &server.certificate
        && facts.not_after <= Timestamp::now()
    {
        bail!(
            "{path}: its certificate for {:?} has expired at {}: give another kubeconfig, or --bootstrap-kubeconfig with a token to join anew",
            facts.common_name,
            facts.not_after
        );
    }
    match server.certified_node() {
        Some(node) if *node != settings.node_name => bail!(
            "{path}: its certificate is for node {node:?} and this node is {:?}: give --hostname-override={node}, or this node's own kubeconfig",
            settings.node_name
        ),
        Some(_) => Ok(()),
        None => {
            tracing::warn!(
                "{path}: no certificate for system:node:{}: what this agent may do is not limited to its own node",
                settings.node_name
            );
            Ok(())
        }
    }
}
