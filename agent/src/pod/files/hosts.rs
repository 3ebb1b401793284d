//! `/etc/hosts` and the names of a pod. Pure.

use std::fmt::Write;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::spec;

/// Longest host name that the kernel takes.
const HOST_NAME_MAX: usize = 64;
/// Longest label of a DNS name.
const LABEL_MAX: usize = 63;

/// The pod's host name in the kernel. The error is what the user reads.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    if let Some(name) = overridden(pod) {
        return Ok(name);
    }
    let as_fqdn = spec::spec(pod)
        .and_then(|spec| spec.set_hostname_as_fqdn)
        .unwrap_or(false);
    match fqdn(pod, cluster_domain).filter(|_| as_fqdn) {
        Some(fqdn) if fqdn.len() > HOST_NAME_MAX => Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
             ({HOST_NAME_MAX} characters is the max, {} characters requested)",
            fqdn.len()
        )),
        Some(fqdn) => Ok(fqdn),
        None => Ok(short_name(pod)),
    }
}

/// `hostnameOverride`, which goes before everything else that names the pod, its domain too.
fn overridden(pod: &Pod) -> Option<String> {
    let name = spec::spec(pod)?.hostname_override.as_deref();
    name.filter(|name| !name.is_empty()).map(cut)
}

/// The first label: `hostname` or the pod's name, cut to what a label may have.
fn short_name(pod: &Pod) -> String {
    let name = spec::spec(pod).and_then(|spec| spec.hostname.as_deref());
    let name = name
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| spec::name(pod));
    cut(name)
}

/// A name in the length of a label, which does not end with a separator.
fn cut(name: &str) -> String {
    let cut: String = name.chars().take(LABEL_MAX).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// `HOSTNAME.SUBDOMAIN.NAMESPACE.svc.DOMAIN`; none without a subdomain.
fn fqdn(pod: &Pod, cluster_domain: &str) -> Option<String> {
    let subdomain = spec::spec(pod)?
        .subdomain
        .as_deref()
        .filter(|name| !name.is_empty())?;
    let namespace = spec::namespace(pod);
    Some(format!(
        "{}.{subdomain}.{namespace}.svc.{cluster_domain}",
        short_name(pod)
    ))
}

/// The content of `/etc/hosts`; `node` is the node's own file, for pods on its network.
pub fn hosts(pod: &Pod, ips: &[String], cluster_domain: &str, node: &str) -> String {
    let mut text = if spec::host_network(pod) {
        format!("# Kubernetes-managed hosts file (host network).\n{node}")
    } else {
        own(pod, ips, cluster_domain)
    };
    let aliases = spec::spec(pod).and_then(|spec| spec.host_aliases.as_ref());
    let mut aliases = aliases.into_iter().flatten().peekable();
    if aliases.peek().is_some() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.iter().flatten();
        let names: Vec<_> = names.map(String::as_str).collect();
        let _ = writeln!(text, "{}\t{}", alias.ip, names.join("\t"));
    }
    text
}

/// The content for a pod with a network of its own.
fn own(pod: &Pod, ips: &[String], cluster_domain: &str) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    let names = match (overridden(pod), fqdn(pod, cluster_domain)) {
        (Some(name), _) => name,
        (None, Some(fqdn)) => format!("{fqdn}\t{}", short_name(pod)),
        (None, None) => short_name(pod),
    };
    for ip in ips {
        let _ = writeln!(text, "{ip}\t{names}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::{Value, json};

    fn pod(mut extra: Value) -> Pod {
        extra["containers"] = json!([]);
        sample::from(extra)
    }

    #[test]
    fn an_overridden_host_name_stands_alone_in_hosts() {
        let pod =
            pod(json!({"subdomain": "sub", "hostname": "h", "hostnameOverride": "x.example"}));
        let text = hosts(&pod, &["10.1.0.5".into()], "cluster.local", "");
        assert!(
            text.ends_with("::2\tip6-allrouters\n10.1.0.5\tx.example\n"),
            "{text}"
        );
        assert_eq!(hostname(&pod, "cluster.local").as_deref(), Ok("x.example"));
    }

    #[test]
    fn hosts_names_the_pod_and_its_aliases() {
        let pod = pod(json!({"subdomain": "sub", "hostname": "h",
            "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["a", "b"]}]}));
        let text = hosts(&pod, &["10.1.0.5".into()], "cluster.local", "");
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        let tail = "10.1.0.5\th.sub.default.svc.cluster.local\th\n\
            \n# Entries added by HostAliases.\n10.0.0.9\ta\tb\n";
        assert!(text.ends_with(tail), "{text}");
    }

    #[test]
    fn a_pod_on_the_nodes_network_sees_the_nodes_file() {
        let text = hosts(
            &pod(json!({"hostNetwork": true})),
            &[],
            "d",
            "127.0.0.1\tlocalhost\n",
        );
        assert_eq!(
            text,
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n"
        );
    }

    #[test]
    fn host_name_is_cut_and_may_be_the_full_one() {
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(10));
        assert_eq!(
            hostname(&pod(json!({"hostname": long})), "d"),
            Ok("a".repeat(62))
        );
        assert_eq!(hostname(&pod(json!({})), "d"), Ok("web".into()));
        let full = pod(json!({"subdomain": "sub", "setHostnameAsFQDN": true}));
        assert_eq!(
            hostname(&full, "cl.local"),
            Ok("web.sub.default.svc.cl.local".into())
        );
        let error = hostname(&full, &"x".repeat(60)).expect_err("too long");
        assert!(
            error.contains("is too long (64 characters is the max"),
            "{error}"
        );
        assert_eq!(
            hostname(&pod(json!({"hostnameOverride": "o"})), "d"),
            Ok("o".into())
        );
        let longest = pod(json!({"hostnameOverride": format!("{}.b", "a".repeat(62))}));
        assert_eq!(hostname(&longest, "d"), Ok("a".repeat(62)));
    }
}
