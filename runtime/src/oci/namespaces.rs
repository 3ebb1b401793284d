//! Namespaces of the specification → the shim's: one that is not listed is the caller's own.

use hanok_shim::launch::UserMaps;
use hanok_shim::protocol::{Namespace, Namespaces};
use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxNamespace, LinuxNamespaceType};

use super::{OciError, Result};

/// The namespaces, and that of the mounts, which a pod's container always has for itself.
pub(super) fn namespaces(list: &[LinuxNamespace]) -> Result<(Namespaces, Namespace)> {
    let of = |kind: LinuxNamespaceType| {
        let found = list.iter().find(|namespace| namespace.typ() == kind);
        match found.map(|namespace| namespace.path()) {
            None => Namespace::Host,
            Some(Some(path)) if !path.as_os_str().is_empty() => {
                Namespace::Path(path.to_string_lossy().into_owned())
            }
            Some(_) => Namespace::New,
        }
    };
    if of(LinuxNamespaceType::Time) != Namespace::Host {
        return Err(OciError::Config("a time namespace is not supported".into()));
    }
    let namespaces = Namespaces {
        net: of(LinuxNamespaceType::Network),
        ipc: of(LinuxNamespaceType::Ipc),
        uts: of(LinuxNamespaceType::Uts),
        pid: of(LinuxNamespaceType::Pid),
        cgroup: of(LinuxNamespaceType::Cgroup),
    };
    Ok((namespaces, of(LinuxNamespaceType::Mount)))
}

/// The mapping of a new user namespace; none when the caller's is kept.
pub(super) fn users(linux: &Linux) -> Result<Option<UserMaps>> {
    let bad = |text: &str| Err(OciError::Config(text.to_owned()));
    let mut list = linux.namespaces().iter().flatten();
    let Some(user) = list.find(|namespace| namespace.typ() == LinuxNamespaceType::User) else {
        return Ok(None);
    };
    if user
        .path()
        .as_ref()
        .is_some_and(|path| !path.as_os_str().is_empty())
    {
        return bad("a user namespace cannot be joined by its path");
    }
    let uids = linux.uid_mappings().as_deref().unwrap_or_default();
    let gids = linux.gid_mappings().as_deref().unwrap_or_default();
    let (Some(uid), Some(gid)) = (outside(uids), outside(gids)) else {
        return bad("a user namespace needs uidMappings and gidMappings with id 0");
    };
    Ok(Some(UserMaps {
        uids: map(uids),
        gids: map(gids),
        root: (uid, gid),
    }))
}

/// What id 0 is outside.
fn outside(mappings: &[LinuxIdMapping]) -> Option<u32> {
    let first = mappings
        .iter()
        .find(|one| one.container_id() == 0 && one.size() > 0);
    first.map(LinuxIdMapping::host_id)
}

/// A mapping as user_namespaces(7) has it.
fn map(mappings: &[LinuxIdMapping]) -> String {
    let line =
        |one: &LinuxIdMapping| format!("{} {} {}\n", one.container_id(), one.host_id(), one.size());
    mappings.iter().map(line).collect()
}

/// Whether a sysctl belongs to a namespace that is not the caller's; the node's own are not for a container.
pub(super) fn check_sysctl(name: &str, namespaces: &Namespaces) -> Result<()> {
    /// Kernel sysctls of an IPC namespace.
    const IPC: [&str; 8] = [
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
    ];
    let dotted = name.replace('/', ".");
    let owner = if dotted.starts_with("net.") {
        &namespaces.net
    } else if IPC.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.") {
        &namespaces.ipc
    } else if dotted == "kernel.domainname" {
        &namespaces.uts
    } else {
        return Err(OciError::Config(format!(
            "sysctl {name:?} belongs to no namespace"
        )));
    };
    if *owner == Namespace::Host {
        let message = format!("sysctl {name:?} would be set in the node's own namespace");
        return Err(OciError::Config(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Namespaces, Namespace)> {
        namespaces(&serde_json::from_str::<Vec<LinuxNamespace>>(text).unwrap())
    }

    #[test]
    fn what_is_not_listed_is_inherited() {
        let (found, mounts) =
            parse(r#"[{"type":"pid"},{"type":"network","path":"/n"},{"type":"uts","path":""}]"#)
                .unwrap();
        assert_eq!(found.pid, Namespace::New);
        assert_eq!(found.net, Namespace::Path("/n".into()));
        assert_eq!(found.uts, Namespace::New);
        assert_eq!(found.ipc, Namespace::Host);
        assert_eq!(mounts, Namespace::Host);
    }

    #[test]
    fn a_user_namespace_has_a_root() {
        let parse = |text: &str| users(&serde_json::from_str::<Linux>(text).unwrap());
        let maps = parse(
            r#"{"namespaces":[{"type":"user"}],"uidMappings":[{"containerID":0,"hostID":1000,"size":2000}],
            "gidMappings":[{"containerID":1,"hostID":5,"size":1},{"containerID":0,"hostID":7,"size":1}]}"#,
        );
        let maps = maps.unwrap().unwrap();
        assert_eq!(
            (maps.uids.as_str(), maps.root),
            ("0 1000 2000\n", (1000, 7))
        );
        assert_eq!(maps.gids, "1 5 1\n0 7 1\n");
        assert!(parse(r#"{"namespaces":[{"type":"user"}]}"#).is_err());
        assert!(parse(r#"{"namespaces":[{"type":"user","path":"/x"}]}"#).is_err());
        assert_eq!(parse(r#"{"namespaces":[]}"#).unwrap(), None);
    }

    #[test]
    fn sysctls_of_the_node_are_refused() {
        let (own, _) = parse(r#"[{"type":"ipc"},{"type":"network"}]"#).unwrap();
        let (none, _) = parse("[]").unwrap();
        for name in [
            "net.ipv4.ip_forward",
            "kernel.msgmax",
            "fs.mqueue.msg_max",
            "net/ipv4/x",
        ] {
            assert!(check_sysctl(name, &own).is_ok(), "{name}");
            assert!(check_sysctl(name, &none).is_err(), "{name}");
        }
        for name in [
            "kernel.core_pattern",
            "vm.swappiness",
            "kernel.domainname",
            "",
        ] {
            assert!(check_sysctl(name, &own).is_err(), "{name}");
        }
    }
}
