//! Sysctls of a pod: each must be of a namespace that the pod has for itself. Whether the node's administrator allows
//! them was decided before; here it is made sure that none is written that would be the node's own.

use crate::api::{NamespaceMode, PodSandboxConfig};

/// Names and beginnings of names that belong to the IPC namespace.
const IPC: [&str; 4] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// The error is what the user reads.
pub(super) fn check(config: &PodSandboxConfig) -> Result<(), String> {
    for name in config.sysctls.keys() {
        let name = dotted(name);
        let is_ipc = IPC.iter().any(|own| match *own {
            "kernel.sem" => name == *own,
            own => name.starts_with(own),
        });
        let (mode, what) = if name.starts_with("net.") {
            (&config.network, "network")
        } else if is_ipc {
            (&config.ipc, "IPC")
        } else if name == "kernel.domainname" {
            // The host name's namespace is the network's owner's.
            (&config.network, "host name")
        } else if name.starts_with("user.") && config.user_namespace.is_some() {
            continue;
        } else {
            return Err(format!(
                "sysctl {name:?} is not in a separate kernel namespace"
            ));
        };
        if *mode == NamespaceMode::Node {
            return Err(format!(
                "sysctl {name:?} cannot be set: the pod has the node's {what} namespace"
            ));
        }
    }
    Ok(())
}

/// The name with dots between its parts. As sysctl(8), the separator that comes first is the separator.
fn dotted(name: &str) -> String {
    let slashes = name
        .find(['.', '/'])
        .is_some_and(|at| name[at..].starts_with('/'));
    match slashes {
        false => name.to_owned(),
        true => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::sandbox;

    #[test]
    fn only_what_the_pod_has_for_itself_is_written() {
        let verdict = |name: &str, network: NamespaceMode, ipc: NamespaceMode| {
            let config = PodSandboxConfig {
                sysctls: [(name.to_owned(), "1".to_owned())].into(),
                network,
                ipc,
                ..sandbox()
            };
            check(&config).is_ok()
        };
        use NamespaceMode::{Node, Pod};
        for (name, own, shared) in [
            ("net.ipv4.tcp_syncookies", true, false),
            ("net/ipv4/conf/eth0.1/forwarding", true, false),
            ("kernel.shm_rmid_forced", true, false),
            ("kernel.msgmax", true, false),
            ("kernel/sem", true, false),
            ("fs.mqueue.msg_max", true, false),
            ("kernel.domainname", true, false),
            ("kernel.semaphore", false, false),
            ("kernel.hostname", false, false),
            ("kernel.panic", false, false),
            ("vm.swappiness", false, false),
            ("network.x", false, false),
            ("user.max_inotify_watches", false, false),
            ("", false, false),
        ] {
            assert_eq!(verdict(name, Pod, Pod), own, "{name}");
            assert_eq!(verdict(name, Node, Node), shared, "{name}");
        }
    }
}
