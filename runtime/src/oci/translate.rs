//! A bundle → the launcher's order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hanok_shim::hook::Hook;
use hanok_shim::launch::CreateOrder;
use hanok_shim::protocol::{ContainerSpec, Device, MountSource, Namespace, Namespaces, Rootfs};
use oci_spec::runtime::{Linux, LinuxDevice, LinuxDeviceType, LinuxPersonalityDomain};

use super::bundle::Bundle;
use super::record::Record;
use super::{OciError, Result, mounts, namespaces, process};
use crate::seccomp::Filter;

/// Mode of a device without one.
const DEVICE_MODE: u32 = 0o666;

/// `PER_LINUX32` of personality(2).
const LINUX32: u32 = 0x0008;

/// What the bundle does not hold.
pub(super) struct Inputs<'a> {
    pub(super) record: &'a Record,
    pub(super) filter: Option<&'a Filter>,
    pub(super) preserved_fds: u32,
    pub(super) announce_prepared: bool,
    pub(super) create_hooks: Vec<Hook>,
    pub(super) start_hooks: Vec<Hook>,
}

/// What the launcher is to do.
pub(super) fn order(bundle: &Bundle, inputs: Inputs<'_>) -> Result<CreateOrder> {
    let linux = bundle.linux();
    let given = bundle.process()?;
    let list = linux.namespaces().as_deref().unwrap_or_default();
    let (namespaces, mount_namespace) = namespaces::namespaces(list)?;
    let spec = &bundle.spec;
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    if linux.intel_rdt().is_some() {
        return Err(OciError::Config("linux.intelRdt is not supported".into()));
    }
    let mount_label = named(linux.mount_label());
    process::check_label(mount_label.is_some(), "linux.mountLabel")?;
    let container = ContainerSpec {
        id: inputs.record.id.clone(),
        state_dir: text(&inputs.record.dir),
        rootfs: Rootfs::Dir(text(&inputs.record.rootfs)),
        readonly_rootfs: spec
            .root()
            .as_ref()
            .is_some_and(|root| root.readonly() == Some(true)),
        mounts: all_mounts(bundle, &namespaces, &inputs.record.cgroups)?,
        masked_paths: linux.masked_paths().clone().unwrap_or_default(),
        readonly_paths: linux.readonly_paths().clone().unwrap_or_default(),
        devices: devices(&linux)?,
        hostname: named(spec.hostname()),
        sysctls: sysctls(&linux, &namespaces)?,
        process: process::process(given, &bundle.capabilities, inputs.filter)?,
        cgroups: inputs.record.cgroups.iter().map(|dir| text(dir)).collect(),
        log: None,
        stdin: false,
        stdin_once: false,
        tty: given.terminal().unwrap_or(false),
        namespaces,
    };
    Ok(CreateOrder {
        container,
        mount_namespace,
        users: namespaces::users(&linux)?,
        root_propagation: mounts::root_propagation(linux.rootfs_propagation().as_deref())?,
        domainname: named(spec.domainname()),
        personality: personality(&linux)?,
        cgroups_later: false,
        announce_prepared: inputs.announce_prepared,
        create_hooks: inputs.create_hooks,
        start_hooks: inputs.start_hooks,
        preserved_fds: inputs.preserved_fds,
        mount_label,
    })
}

/// Whether the bundle's mounts will be in a mount namespace that others use too.
pub(super) fn shares_mounts(bundle: &Bundle) -> Result<bool> {
    let linux = bundle.linux();
    let list = linux.namespaces().as_deref().unwrap_or_default();
    let (_, mounts) = namespaces::namespaces(list)?;
    Ok(mounts != Namespace::New)
}

fn all_mounts(
    bundle: &Bundle,
    namespaces: &Namespaces,
    cgroups: &[PathBuf],
) -> Result<Vec<hanok_shim::protocol::Mount>> {
    let mut all = Vec::new();
    for given in bundle.spec.mounts().iter().flatten() {
        let mount = mounts::mount(given, &bundle.dir)?;
        if mount.source == MountSource::Cgroup && namespaces.cgroup == Namespace::Host {
            all.extend(mounts::own_cgroups(&mount, cgroups));
        } else {
            all.push(mount);
        }
    }
    Ok(all)
}

fn sysctls(linux: &Linux, namespaces: &Namespaces) -> Result<BTreeMap<String, String>> {
    let given = linux.sysctl().iter().flatten();
    given
        .map(|(name, value)| {
            namespaces::check_sysctl(name, namespaces)?;
            Ok((name.clone(), value.clone()))
        })
        .collect()
}

fn devices(linux: &Linux) -> Result<Vec<Device>> {
    let given = linux.devices().iter().flatten();
    // Everybody has a link to the one of the own devpts there, however the document was made.
    let given = given.filter(|device| device.path() != Path::new("/dev/ptmx"));
    given.map(device).collect()
}

fn device(given: &LinuxDevice) -> Result<Device> {
    let path = text(given.path());
    let kind = match given.typ() {
        LinuxDeviceType::B => libc::S_IFBLK,
        LinuxDeviceType::C | LinuxDeviceType::U => libc::S_IFCHR,
        LinuxDeviceType::P => libc::S_IFIFO,
        LinuxDeviceType::A => {
            return Err(OciError::Config(format!("device {path} has no type")));
        }
    };
    let number = |value: i64| {
        u32::try_from(value).map_err(|_| OciError::Config(format!("device {path}: number {value}")))
    };
    Ok(Device {
        mode: kind | (given.file_mode().unwrap_or(DEVICE_MODE) & 0o7777),
        major: number(given.major())?,
        minor: number(given.minor())?,
        uid: given.uid().unwrap_or(0),
        gid: given.gid().unwrap_or(0),
        path,
    })
}

fn personality(linux: &Linux) -> Result<Option<u32>> {
    let Some(given) = linux.personality() else {
        return Ok(None);
    };
    if given
        .flags()
        .as_ref()
        .is_some_and(|flags| !flags.is_empty())
    {
        return Err(OciError::Config(
            "personality.flags are not supported".into(),
        ));
    }
    Ok(Some(match given.domain() {
        LinuxPersonalityDomain::PerLinux => 0,
        LinuxPersonalityDomain::PerLinux32 => LINUX32,
    }))
}

/// Paths of a document are text in it.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
