//! The specification → the shim's order: option strings become numbers, names become bits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hanok_shim::protocol::{self, ContainerSpec, MountSource, Namespace, Namespaces, Rootfs};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Mount, Process, Spec};

use super::{SpecError, capabilities, has_cgroup_namespace, mounts, pid_mode};
use crate::api::{ContainerConfig, NamespaceMode, PodSandboxConfig};
use crate::seccomp::Filter;

/// File mode creation mask of containers.
const UMASK: u32 = 0o022;

/// What the specification does not hold.
#[derive(Debug)]
pub struct OrderInputs<'a> {
    /// Container id.
    pub id: &'a str,
    /// The sandbox's configuration.
    pub sandbox: &'a PodSandboxConfig,
    /// The container's configuration.
    pub config: &'a ContainerConfig,
    /// Directory of the container's record.
    pub state_dir: &'a Path,
    /// The mounted snapshot.
    pub rootfs: Rootfs,
    /// Network namespace of the pod.
    pub netns: Option<&'a Path>,
    /// Process whose PID namespace to join, for [`NamespaceMode::Target`].
    pub target_pid: i32,
    /// The compiled filter.
    pub seccomp: Option<Arc<Filter>>,
    /// Directories to join.
    pub cgroups: Vec<String>,
    /// Full path of the log file.
    pub log: Option<&'a Path>,
}

/// What the shim is to do for a container.
pub fn order(spec: &Spec, inputs: OrderInputs<'_>) -> Result<ContainerSpec, SpecError> {
    let linux = spec
        .linux()
        .as_ref()
        .ok_or(SpecError::Incomplete("linux"))?;
    let process = spec
        .process()
        .as_ref()
        .ok_or(SpecError::Incomplete("process"))?;
    let root = spec.root().as_ref().ok_or(SpecError::Incomplete("root"))?;
    let config = inputs.config;
    let mounts = spec
        .mounts()
        .iter()
        .flatten()
        .map(mount)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(ContainerSpec {
        id: inputs.id.to_owned(),
        state_dir: text(inputs.state_dir),
        namespaces: namespaces(&inputs),
        rootfs: inputs.rootfs,
        readonly_rootfs: root.readonly().unwrap_or(false),
        mounts,
        masked_paths: linux.masked_paths().clone().unwrap_or_default(),
        readonly_paths: linux.readonly_paths().clone().unwrap_or_default(),
        devices: linux
            .devices()
            .iter()
            .flatten()
            .map(device)
            .collect::<Result<_, _>>()?,
        hostname: None,
        sysctls: BTreeMap::new(),
        process: order_process(process, config, inputs.seccomp.as_deref()),
        cgroups: inputs.cgroups,
        log: inputs.log.map(|path| protocol::Log {
            path: text(path),
            max_size: config.log_max_size,
            max_files: config.log_max_files,
        }),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
    })
}

fn namespaces(inputs: &OrderInputs<'_>) -> Namespaces {
    let shared = |mode: &NamespaceMode| match mode {
        NamespaceMode::Node => Namespace::Host,
        _ => Namespace::Pod,
    };
    let net = match inputs.netns {
        Some(path) if inputs.sandbox.network != NamespaceMode::Node => Namespace::Path(text(path)),
        _ => Namespace::Host,
    };
    Namespaces {
        net,
        ipc: shared(&inputs.sandbox.ipc),
        // The host name belongs to the network's owner.
        uts: shared(&inputs.sandbox.network),
        pid: match pid_mode(inputs.sandbox, inputs.config) {
            NamespaceMode::Node => Namespace::Host,
            NamespaceMode::Pod => Namespace::Pod,
            NamespaceMode::Container => Namespace::New,
            NamespaceMode::Target(_) => {
                Namespace::Path(format!("/proc/{}/ns/pid", inputs.target_pid))
            }
        },
        cgroup: match has_cgroup_namespace(inputs.sandbox, inputs.config) {
            true => Namespace::New,
            false => Namespace::Host,
        },
    }
}

fn order_process(
    process: &Process,
    config: &ContainerConfig,
    seccomp: Option<&Filter>,
) -> protocol::Process {
    let user = process.user();
    let sets = process.capabilities().as_ref();
    let set = |pick: fn(&oci_spec::runtime::LinuxCapabilities) -> &Option<_>| {
        capabilities::from_oci(sets.and_then(|sets| pick(sets).as_ref()))
    };
    protocol::Process {
        args: process.args().clone().unwrap_or_default(),
        env: process.env().clone().unwrap_or_default(),
        cwd: text(process.cwd()),
        user: protocol::User {
            spec: user
                .username()
                .clone()
                .unwrap_or_else(|| user.uid().to_string()),
            gid: config.security.run_as_group,
            additional_gids: user.additional_gids().clone().unwrap_or_default(),
            strict_groups: config.security.strict_groups,
        },
        capabilities: protocol::Capabilities {
            bounding: set(|sets| sets.bounding()),
            effective: set(|sets| sets.effective()),
            permitted: set(|sets| sets.permitted()),
            inheritable: set(|sets| sets.inheritable()),
            ambient: set(|sets| sets.ambient()),
        },
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        seccomp: seccomp
            .map(|filter| filter.program.clone())
            .unwrap_or_default(),
        seccomp_flags: seccomp.map_or(0, |filter| filter.flags),
        rlimits: Vec::new(),
        oom_score_adj: process.oom_score_adj(),
        umask: Some(UMASK),
        apparmor: process.apparmor_profile().clone(),
        selinux: process.selinux_label().clone(),
    }
}

/// Mount options by their effect: attribute bits set, bits cleared, on the whole tree.
const ATTRIBUTES: [(&str, u64, u64, bool); 11] = [
    ("ro", 0x1, 0, false),
    ("rro", 0x1, 0, true),
    ("rw", 0, 0x1, false),
    ("nosuid", 0x2, 0, false),
    ("nodev", 0x4, 0, false),
    ("noexec", 0x8, 0, false),
    ("noatime", 0x10, 0x70, false),
    ("strictatime", 0x20, 0x70, false),
    // relatime is the absence of the others.
    ("relatime", 0, 0x70, false),
    ("nosymfollow", 0x20_0000, 0, false),
    ("idmap", 0x10_0000, 0, false),
];

/// Propagation options.
const PROPAGATION: [(&str, u64); 3] = [
    ("rprivate", 0),
    ("rslave", libc::MS_SLAVE),
    ("rshared", libc::MS_SHARED),
];

fn mount(mount: &Mount) -> Result<protocol::Mount, SpecError> {
    let destination = text(mount.destination());
    let (mut attr_set, mut attr_clear, mut attr_recursive) = (0, 0, false);
    let (mut propagation, mut recursive) = (0, false);
    let mut filesystem = Vec::new();
    let mut sub_path = None;
    for option in mount.options().iter().flatten() {
        if let Some((_, set, clear, deep)) = ATTRIBUTES.iter().find(|(name, ..)| name == option) {
            attr_set |= set;
            attr_clear |= clear;
            attr_recursive |= deep;
        } else if let Some((_, value)) = PROPAGATION.iter().find(|(name, _)| name == option) {
            propagation = *value;
        } else if option == "rbind" || option == "bind" {
            recursive = option == "rbind";
        } else if let Some(path) = option.strip_prefix(mounts::SUB_PATH) {
            sub_path = Some(path.to_owned());
        } else {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            filesystem.push((name.to_owned(), value.to_owned()));
        }
    }
    let source = match mount.typ().as_deref() {
        Some("bind") => {
            let path = mount
                .source()
                .as_ref()
                .ok_or(SpecError::Incomplete("mount source"))?;
            match sub_path {
                Some(sub_path) => MountSource::BindBelow {
                    root: text(path),
                    path: sub_path,
                    recursive,
                },
                None => MountSource::Bind {
                    path: text(path),
                    recursive,
                },
            }
        }
        Some("cgroup") => MountSource::Cgroup,
        Some(mounts::POD_SHM) => MountSource::Shm {
            size: mounts::SHM_SIZE,
        },
        Some(fstype) => MountSource::Filesystem {
            fstype: fstype.to_owned(),
            options: filesystem,
        },
        None => return Err(SpecError::Incomplete("mount type")),
    };
    Ok(protocol::Mount {
        destination,
        source,
        attr_set,
        // A bit that is set is not cleared; the access time bits are one field, cleared as a whole first.
        attr_clear: attr_clear & (0x70 | !attr_set),
        attr_recursive,
        propagation,
    })
}

fn device(device: &LinuxDevice) -> Result<protocol::Device, SpecError> {
    let number =
        |value: i64| u32::try_from(value).map_err(|_| SpecError::Incomplete("device number"));
    let kind = match device.typ() {
        LinuxDeviceType::B => libc::S_IFBLK,
        LinuxDeviceType::P => libc::S_IFIFO,
        _ => libc::S_IFCHR,
    };
    Ok(protocol::Device {
        path: text(device.path()),
        mode: kind | (device.file_mode().unwrap_or(0o666) & 0o7777),
        major: number(device.major())?,
        minor: number(device.minor())?,
        uid: device.uid().unwrap_or(0),
        gid: device.gid().unwrap_or(0),
    })
}

/// Paths of ours are made from text; those of pods and images are text in JSON.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
