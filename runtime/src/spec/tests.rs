//! Tables over whole specifications.

use hanok_shim::protocol::{self, MountSource, Namespace, Rootfs};

use super::*;
use crate::api::{Mount, PodUid, Propagation, SecurityContext};

pub(crate) fn sandbox() -> PodSandboxConfig {
    PodSandboxConfig {
        name: "web".into(),
        namespace: "default".into(),
        uid: PodUid("u".into()),
        attempt: 0,
        hostname: "web".into(),
        log_directory: "/var/log/pods/x".into(),
        runtime_handler: String::new(),
        network: NamespaceMode::Pod,
        pid: NamespaceMode::Container,
        ipc: NamespaceMode::Pod,
        user_namespace: None,
        sysctls: Default::default(),
        cgroup_parent: "kubepods/podu".into(),
        port_mappings: vec![],
        labels: Default::default(),
        annotations: Default::default(),
    }
}

fn host() -> HostFacts {
    HostFacts {
        capabilities: (1 << 41) - 1,
        hostname: "web".into(),
        netns: Some("/run/netns/cni-x".into()),
        pause_pid: 42,
        hostname_file: Some("/run/hanok/sandboxes/s/hostname".into()),
        extra_masked_paths: vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".into()],
        devices: vec![],
        volumes: "/var/lib/hanok/volumes/c".into(),
        cgroup: "/kubepods/podu/c".into(),
        app_armor: None,
        labels: Labels::default(),
    }
}

fn image() -> ImageFacts {
    ImageFacts {
        cmd: vec!["sh".into()],
        ..ImageFacts::default()
    }
}

fn ordered(
    sandbox: &PodSandboxConfig,
    config: &ContainerConfig,
    image: &ImageFacts,
) -> protocol::ContainerSpec {
    let spec = generate(sandbox, config, image, &host()).unwrap();
    // It goes through config.json.
    let spec: Spec = serde_json::from_slice(&serde_json::to_vec(&spec).unwrap()).unwrap();
    let inputs = OrderInputs {
        id: "c",
        sandbox,
        config,
        state_dir: Path::new("/run/c"),
        rootfs: Rootfs::Dir("/rootfs".into()),
        netns: Some(Path::new("/run/netns/cni-x")),
        target_pid: 77,
        seccomp: None,
        cgroups: vec![],
        log: None,
    };
    order(&spec, inputs).unwrap()
}

fn find<'a>(order: &'a protocol::ContainerSpec, destination: &str) -> &'a protocol::Mount {
    order
        .mounts
        .iter()
        .find(|mount| mount.destination == destination)
        .unwrap()
}

#[test]
fn ordinary_container_is_confined() {
    let order = ordered(&sandbox(), &ContainerConfig::default(), &image());
    let process = &order.process;
    assert_eq!(process.args, ["sh"]);
    assert_eq!(process.capabilities.bounding, 0xa804_25fb);
    assert_eq!(process.capabilities.effective, 0xa804_25fb);
    assert_eq!(process.capabilities.permitted, 0xa804_25fb);
    assert_eq!(
        (
            process.capabilities.inheritable,
            process.capabilities.ambient
        ),
        (0, 0)
    );
    assert_eq!(process.user.spec, "0");
    assert!(process.rlimits.is_empty());
    assert_eq!(order.masked_paths.len(), 13);
    assert_eq!(
        order.readonly_paths,
        [
            "/proc/bus",
            "/proc/fs",
            "/proc/irq",
            "/proc/sys",
            "/proc/sysrq-trigger"
        ]
    );
    let destinations: Vec<&str> = order
        .mounts
        .iter()
        .map(|m| m.destination.as_str())
        .collect();
    assert_eq!(
        destinations,
        [
            "/proc",
            "/dev",
            "/sys",
            "/dev/pts",
            "/dev/shm",
            "/dev/mqueue",
            "/etc/hostname",
            "/sys/fs/cgroup"
        ]
    );
    assert_eq!(find(&order, "/proc").attr_set, 0x2 | 0x4 | 0x8);
    assert_eq!(find(&order, "/sys").attr_set, 0x1 | 0x2 | 0x4 | 0x8);
    assert_eq!(find(&order, "/sys/fs/cgroup").source, MountSource::Cgroup);
    assert_eq!(
        find(&order, "/sys/fs/cgroup").attr_set,
        0x1 | 0x2 | 0x4 | 0x8
    );
    assert_eq!(
        find(&order, "/dev/shm").source,
        MountSource::Shm { size: 64 << 20 }
    );
    let dev = find(&order, "/dev");
    assert_eq!((dev.attr_set, dev.attr_clear), (0x2 | 0x20, 0x70));
    let MountSource::Filesystem { fstype, options } = &dev.source else {
        panic!("{dev:?}")
    };
    assert_eq!(fstype, "tmpfs");
    assert!(options.contains(&("size".into(), "65536k".into())));
}

#[test]
fn namespaces_follow_the_pod() {
    let config = ContainerConfig::default();
    let order = ordered(&sandbox(), &config, &image());
    assert_eq!(
        order.namespaces.net,
        Namespace::Path("/run/netns/cni-x".into())
    );
    assert_eq!(order.namespaces.ipc, Namespace::Pod);
    assert_eq!(order.namespaces.uts, Namespace::Pod);
    assert_eq!(order.namespaces.pid, Namespace::New);
    assert_eq!(order.namespaces.cgroup, Namespace::New);

    let node = PodSandboxConfig {
        network: NamespaceMode::Node,
        ipc: NamespaceMode::Node,
        pid: NamespaceMode::Node,
        ..sandbox()
    };
    let order = ordered(&node, &config, &image());
    assert_eq!(order.namespaces.net, Namespace::Host);
    assert_eq!(order.namespaces.ipc, Namespace::Host);
    assert_eq!(order.namespaces.uts, Namespace::Host);
    assert_eq!(order.namespaces.pid, Namespace::Host);
    assert!(
        matches!(&find(&order, "/dev/shm").source, MountSource::Bind { path, .. } if path == "/dev/shm")
    );

    let shared = PodSandboxConfig {
        pid: NamespaceMode::Pod,
        ..sandbox()
    };
    assert_eq!(
        ordered(&shared, &config, &image()).namespaces.pid,
        Namespace::Pod
    );

    let target = NamespaceMode::Target(crate::api::ContainerId("t".into()));
    let mut config = config;
    config.security.pid = Some(target);
    let order = ordered(&sandbox(), &config, &image());
    assert_eq!(
        order.namespaces.pid,
        Namespace::Path("/proc/77/ns/pid".into())
    );
}

#[test]
fn privileged_container_is_not_confined() {
    let security = SecurityContext {
        privileged: true,
        ..SecurityContext::default()
    };
    let config = ContainerConfig {
        security,
        ..ContainerConfig::default()
    };
    let order = ordered(&sandbox(), &config, &image());
    assert_eq!(order.process.capabilities.bounding, (1 << 41) - 1);
    assert!(order.masked_paths.is_empty() && order.readonly_paths.is_empty());
    assert_eq!(find(&order, "/sys").attr_set & 1, 0);
    assert_eq!(order.namespaces.cgroup, Namespace::Host);
}

#[test]
fn unmasked_proc_stays_otherwise_confined() {
    let security = SecurityContext {
        proc_unmasked: true,
        ..SecurityContext::default()
    };
    let config = ContainerConfig {
        security,
        ..ContainerConfig::default()
    };
    let order = ordered(&sandbox(), &config, &image());
    assert!(order.masked_paths.is_empty() && order.readonly_paths.is_empty());
    assert_eq!(order.process.capabilities.bounding, 0xa804_25fb);
}

fn volume(path: &str) -> Mount {
    Mount {
        container_path: path.into(),
        host_path: "/host".into(),
        sub_path: String::new(),
        readonly: false,
        recursive_readonly: false,
        propagation: Propagation::Private,
        selinux_relabel: false,
    }
}

#[test]
fn volumes_come_after_what_they_lie_in_and_replace_what_is_there() {
    let image = ImageFacts {
        volumes: vec!["/data".into(), "/cache/".into()],
        ..image()
    };
    let config = ContainerConfig {
        mounts: vec![
            Mount {
                readonly: true,
                ..volume("/data/deep/er")
            },
            Mount {
                propagation: Propagation::HostToContainer,
                ..volume("/data")
            },
            Mount {
                recursive_readonly: true,
                readonly: true,
                ..volume("/ro//x/./y")
            },
            Mount {
                propagation: Propagation::Bidirectional,
                ..volume("/dev/shm")
            },
        ],
        ..ContainerConfig::default()
    };
    let order = ordered(&sandbox(), &config, &image);
    let place = |path: &str| {
        order
            .mounts
            .iter()
            .position(|m| m.destination == path)
            .unwrap()
    };
    assert!(place("/data") < place("/data/deep/er"));
    assert_eq!(
        order
            .mounts
            .iter()
            .filter(|m| m.destination == "/data")
            .count(),
        1
    );
    assert_eq!(find(&order, "/data").propagation, libc::MS_SLAVE);
    assert_eq!(find(&order, "/data/deep/er").attr_set, 1);
    assert!(!find(&order, "/data/deep/er").attr_recursive);
    assert!(find(&order, "/ro/x/y").attr_recursive);
    assert_eq!(find(&order, "/dev/shm").propagation, libc::MS_SHARED);
    assert_eq!(
        find(&order, "/cache").source,
        MountSource::Bind {
            path: "/var/lib/hanok/volumes/c/1".into(),
            recursive: true
        }
    );
}

#[test]
fn paths_that_would_lift_the_confinement_are_refused() {
    for path in ["/proc", "/proc/self/attr", "relative", "/a/../proc", ""] {
        let config = ContainerConfig {
            mounts: vec![volume(path)],
            ..ContainerConfig::default()
        };
        assert!(
            generate(&sandbox(), &config, &image(), &host()).is_err(),
            "{path}"
        );
    }
    for path in ["/", "/proc", "/sys/x", "/dev/shm", "../x", "x"] {
        let image = ImageFacts {
            volumes: vec![path.into()],
            ..image()
        };
        let config = ContainerConfig::default();
        assert!(
            generate(&sandbox(), &config, &image, &host()).is_err(),
            "{path}"
        );
    }
    let image = ImageFacts {
        volumes: vec!["/v".into(); 65],
        ..image()
    };
    assert!(generate(&sandbox(), &ContainerConfig::default(), &image, &host()).is_err());
}

#[test]
fn broken_config_json_is_an_error() {
    let mut spec = generate(&sandbox(), &ContainerConfig::default(), &image(), &host()).unwrap();
    spec.set_linux(None);
    let config = ContainerConfig::default();
    let sandbox = sandbox();
    let inputs = OrderInputs {
        id: "c",
        sandbox: &sandbox,
        config: &config,
        state_dir: Path::new("/run/c"),
        rootfs: Rootfs::Dir("/rootfs".into()),
        netns: None,
        target_pid: 0,
        seccomp: None,
        cgroups: vec![],
        log: None,
    };
    assert_eq!(
        order(&spec, inputs).unwrap_err(),
        SpecError::Incomplete("linux")
    );
}

#[test]
fn profile_and_labels_are_the_nodes() {
    let host = HostFacts {
        app_armor: Some("local".into()),
        labels: Labels {
            process: Some("u:r:t:s0".into()),
            mount: Some("u:r:f:s0".into()),
        },
        ..host()
    };
    let spec = generate(&sandbox(), &ContainerConfig::default(), &image(), &host).unwrap();
    let process = spec.process().clone().unwrap();
    assert_eq!(process.apparmor_profile().as_deref(), Some("local"));
    assert_eq!(process.selinux_label().as_deref(), Some("u:r:t:s0"));
    let linux = spec.linux().clone().unwrap();
    assert_eq!(linux.mount_label().as_deref(), Some("u:r:f:s0"));
}

#[test]
fn in_a_user_namespace_every_bind_mount_is_id_mapped_and_a_sub_path_goes_by_its_volume() {
    let users = PodSandboxConfig {
        user_namespace: Some(crate::api::UserNamespace {
            host_id: 65_536,
            length: 65_536,
        }),
        ..sandbox()
    };
    let config = ContainerConfig {
        mounts: vec![Mount {
            sub_path: "a/b".into(),
            readonly: true,
            ..volume("/data")
        }],
        ..ContainerConfig::default()
    };
    for (sandbox, mapped) in [(users, 0x10_0000), (sandbox(), 0)] {
        let order = ordered(&sandbox, &config, &image());
        let binds = order.mounts.iter().filter(|mount| {
            matches!(
                mount.source,
                MountSource::Bind { .. } | MountSource::BindBelow { .. }
            )
        });
        let binds: Vec<_> = binds.collect();
        assert_eq!(binds.len(), 2);
        let volumes = binds
            .iter()
            .filter(|mount| mount.destination != "/etc/hostname");
        assert!(
            volumes
                .clone()
                .all(|mount| mount.attr_set & 0x10_0000 == mapped)
        );
        let data = binds
            .iter()
            .find(|mount| mount.destination == "/data")
            .unwrap();
        let source = MountSource::BindBelow {
            root: "/host".into(),
            path: "a/b".into(),
            recursive: true,
        };
        assert_eq!((&data.source, data.attr_set & 1), (&source, 1));
    }
}
