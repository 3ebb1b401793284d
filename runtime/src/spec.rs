//! What a container is, in OCI's words: image configuration + [`ContainerConfig`] → `config.json` → the
//! shim's order.
//!
//! [`generate`] is pure: it decides arguments, environment, user, capabilities, mounts and paths, the way
//! containerd does, since pods are written against that. [`order`] translates the specification into
//! numbers for the shim. What OCI cannot say travels beside it: the user as it is written (the shim looks
//! names up in the container's own files) sits in `process.user.username`, the pod's shared memory is a
//! mount of the type [`mounts::POD_SHM`]. Limits and device rules are no part of it: we set cgroups ourselves.

pub mod capabilities;
pub mod mounts;
pub mod order;
mod paths;
mod process;

use std::path::{Path, PathBuf};

use hanok_shim::protocol::MAX_STRINGS;
use oci_spec::runtime::{
    Linux, LinuxCapabilities, LinuxDevice, LinuxNamespace, LinuxNamespaceType, Process, Root, Spec,
};

use crate::api::{ContainerConfig, NamespaceMode, PodSandboxConfig};
use crate::lsm::selinux::Labels;

pub use order::{OrderInputs, order};

/// A configuration that cannot become a container. Display is for the pod's event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Neither the image nor the pod says what to run.
    #[error("no command specified")]
    NoCommand,
    /// A value of the image or the pod is out of its range; field and value are named.
    #[error("invalid {field} {value:?}: {reason}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The process would have more arguments and environment than the kernel gives to any.
    #[error(
        "arguments and environment have {total} bytes, {whose} alone {most}; a program can be given {MAX_STRINGS}"
    )]
    TooMuch {
        /// All of them, with what each costs.
        total: usize,
        /// The largest.
        whose: String,
        /// Its bytes.
        most: usize,
    },
    /// A specification read back from disk is not one of ours.
    #[error("config.json has no {0}")]
    Incomplete(&'static str),
}

/// What an image says about its containers. Untrusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFacts {
    /// ENTRYPOINT.
    pub entrypoint: Vec<String>,
    /// CMD.
    pub cmd: Vec<String>,
    /// ENV, `NAME=value`.
    pub env: Vec<String>,
    /// WORKDIR.
    pub working_dir: String,
    /// USER.
    pub user: String,
    /// VOLUME.
    pub volumes: Vec<String>,
    /// STOPSIGNAL.
    pub stop_signal: String,
}

impl From<&oci_spec::image::Config> for ImageFacts {
    fn from(config: &oci_spec::image::Config) -> Self {
        ImageFacts {
            entrypoint: config.entrypoint().clone().unwrap_or_default(),
            cmd: config.cmd().clone().unwrap_or_default(),
            env: config.env().clone().unwrap_or_default(),
            working_dir: config.working_dir().clone().unwrap_or_default(),
            user: config.user().clone().unwrap_or_default(),
            volumes: config.volumes().clone().unwrap_or_default(),
            stop_signal: config.stop_signal().clone().unwrap_or_default(),
        }
    }
}

/// What the node and the sandbox add.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Capabilities that we hold ourselves; nobody gets more.
    pub capabilities: u64,
    /// Host name of the pod, or of the node for pods in its network.
    pub hostname: String,
    /// Network namespace of the pod; none for the node's.
    pub netns: Option<PathBuf>,
    /// Process that holds the pod's other namespaces.
    pub pause_pid: i32,
    /// `/etc/hostname` of the pod on the host.
    pub hostname_file: Option<PathBuf>,
    /// Paths that exist on this machine only, to be hidden beside the standard ones.
    pub extra_masked_paths: Vec<String>,
    /// The container's devices beside the standard ones, with their numbers.
    pub devices: Vec<LinuxDevice>,
    /// Directory for the image's volumes; the n-th volume is its subdirectory n.
    pub volumes: PathBuf,
    /// `/cgroup/parent/id`.
    pub cgroup: String,
    /// The AppArmor profile, which is loaded.
    pub app_armor: Option<String>,
    /// SELinux labels; none where it is not enabled.
    pub labels: Labels,
}

/// The container's specification.
pub fn generate(
    sandbox: &PodSandboxConfig,
    config: &ContainerConfig,
    image: &ImageFacts,
    host: &HostFacts,
) -> Result<Spec, SpecError> {
    let privileged = config.security.privileged;
    let mut root = Root::default();
    root.set_path(PathBuf::from("rootfs"))
        .set_readonly(Some(config.security.readonly_rootfs));

    let mut linux = Linux::default();
    linux
        .set_namespaces(Some(namespaces(sandbox, config, host)))
        .set_cgroups_path(Some(PathBuf::from(&host.cgroup)))
        .set_resources(None)
        .set_devices(Some(host.devices.clone()))
        .set_rootfs_propagation(mounts::rootfs_propagation(config))
        .set_mount_label(host.labels.mount.clone())
        .set_masked_paths(Some(paths::masked(config, host)))
        .set_readonly_paths(Some(paths::readonly(config)));

    let mut spec = Spec::default();
    spec.set_root(Some(root))
        .set_hostname(None)
        .set_mounts(Some(mounts::mounts(sandbox, config, image, host)?))
        .set_process(Some(process(config, image, host, privileged)?))
        .set_linux(Some(linux));
    Ok(spec)
}

fn process(
    config: &ContainerConfig,
    image: &ImageFacts,
    host: &HostFacts,
    privileged: bool,
) -> Result<Process, SpecError> {
    let security = &config.security;
    let set = if privileged {
        host.capabilities
    } else {
        let (add, drop) = (&security.add_capabilities, &security.drop_capabilities);
        capabilities::resolve(add, drop, host.capabilities)?
    };
    let named = Some(capabilities::to_oci(set));
    let mut sets = LinuxCapabilities::default();
    // Inheritable and ambient stay empty: a file capability or a set-id program would gain from them.
    sets.set_bounding(named.clone())
        .set_effective(named.clone())
        .set_permitted(named)
        .set_inheritable(Some(Default::default()))
        .set_ambient(Some(Default::default()));

    let args = process::args(config, image)?;
    let env = process::env(config, image, &host.hostname)?;
    process::fit(&args, &env)?;
    let mut process = Process::default();
    process
        .set_terminal(Some(config.tty))
        .set_args(Some(args))
        .set_env(Some(env))
        .set_cwd(process::cwd(config, image)?)
        .set_user(process::user(config, image)?)
        .set_capabilities(Some(sets))
        .set_rlimits(None)
        .set_no_new_privileges(Some(security.no_new_privs))
        .set_oom_score_adj(Some(config.resources.oom_score_adj))
        .set_apparmor_profile(host.app_armor.clone())
        .set_selinux_label(host.labels.process.clone());
    Ok(process)
}

/// The PID namespace that a container is to have: its own wish, else the sandbox's.
pub fn pid_mode<'a>(
    sandbox: &'a PodSandboxConfig,
    config: &'a ContainerConfig,
) -> &'a NamespaceMode {
    config.security.pid.as_ref().unwrap_or(&sandbox.pid)
}

/// A privileged container sees the node's cgroups, unless it has no rights over them anyway.
fn has_cgroup_namespace(sandbox: &PodSandboxConfig, config: &ContainerConfig) -> bool {
    !config.security.privileged || sandbox.user_namespace.is_some()
}

fn namespaces(
    sandbox: &PodSandboxConfig,
    config: &ContainerConfig,
    host: &HostFacts,
) -> Vec<LinuxNamespace> {
    let namespace = |typ, path: Option<PathBuf>| {
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(typ).set_path(path);
        namespace
    };
    let pause = |name: &str| Some(Path::new("/proc").join(format!("{}/ns/{name}", host.pause_pid)));
    let mut list = vec![namespace(LinuxNamespaceType::Mount, None)];
    if sandbox.user_namespace.is_some() {
        list.push(namespace(LinuxNamespaceType::User, pause("user")));
    }
    if sandbox.network != NamespaceMode::Node {
        list.push(namespace(LinuxNamespaceType::Network, host.netns.clone()));
        list.push(namespace(LinuxNamespaceType::Uts, pause("uts")));
    }
    if sandbox.ipc != NamespaceMode::Node {
        list.push(namespace(LinuxNamespaceType::Ipc, pause("ipc")));
    }
    match pid_mode(sandbox, config) {
        NamespaceMode::Node => {}
        NamespaceMode::Container => list.push(namespace(LinuxNamespaceType::Pid, None)),
        // The target's process id is known at start; config.json only shows that it is shared.
        NamespaceMode::Pod | NamespaceMode::Target(_) => {
            list.push(namespace(LinuxNamespaceType::Pid, pause("pid")));
        }
    }
    if has_cgroup_namespace(sandbox, config) {
        list.push(namespace(LinuxNamespaceType::Cgroup, None));
    }
    list
}

#[cfg(test)]
pub(crate) mod tests;
