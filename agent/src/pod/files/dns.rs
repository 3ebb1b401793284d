//! `/etc/resolv.conf` of a pod. Pure, but for reading the node's own.

use std::fmt::Write;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::spec;

/// Most name servers that resolvers look at.
const MAX_NAMESERVERS: usize = 3;
/// Most search domains.
const MAX_SEARCHES: usize = 32;
/// Most characters of the search line.
const MAX_SEARCH_CHARS: usize = 2048;

/// What pods resolve names with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of the cluster's DNS service.
    pub cluster_dns: Vec<String>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The node's own configuration.
    pub node: ResolvConf,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            node: ResolvConf::default(),
        }
    }
}

/// The content of a resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` lines.
    pub nameservers: Vec<String>,
    /// The `search` line.
    pub searches: Vec<String>,
    /// The `options` line.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the lines that are known; the last `search` and `options` lines count.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => conf.nameservers.extend(words.next()),
                Some("search" | "domain") => conf.searches = words.collect(),
                Some("options") => conf.options = words.collect(),
                _ => {}
            }
        }
        conf
    }

    /// As a file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.searches.is_empty() {
            let _ = writeln!(text, "search {}", self.searches.join(" "));
        }
        for server in &self.nameservers {
            let _ = writeln!(text, "nameserver {server}");
        }
        if !self.options.is_empty() {
            let _ = writeln!(text, "options {}", self.options.join(" "));
        }
        text
    }
}

/// A pod's configuration, and what a user should know about it: (event reason, message).
pub fn resolv_conf(pod: &Pod, dns: &DnsConfig) -> (ResolvConf, Vec<(&'static str, String)>) {
    let mut warnings = Vec::new();
    let spec = spec::spec(pod);
    let policy = spec
        .and_then(|spec| spec.dns_policy.as_deref())
        .unwrap_or("ClusterFirst");
    let cluster_first = match policy {
        "None" => None,
        "ClusterFirstWithHostNet" => Some(true),
        "ClusterFirst" => Some(!spec::host_network(pod)),
        _ => Some(false),
    };
    let mut conf = match cluster_first {
        None => ResolvConf::default(),
        Some(true) if dns.cluster_dns.is_empty() => {
            let message = format!(
                "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                 {policy:?} policy. Falling back to \"Default\" policy.",
                spec::display(pod)
            );
            warnings.push(("MissingClusterDNS", message));
            dns.node.clone()
        }
        Some(true) => cluster(pod, dns),
        Some(false) => dns.node.clone(),
    };
    if let Some(own) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        let new = |list: &[String], more: &Option<Vec<String>>| -> Vec<String> {
            more.iter()
                .flatten()
                .filter(|item| !list.contains(item))
                .cloned()
                .collect()
        };
        conf.nameservers
            .extend(new(&conf.nameservers, &own.nameservers));
        conf.searches.extend(new(&conf.searches, &own.searches));
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            conf.options
                .retain(|set| set.split(':').next() != Some(name.as_str()));
            conf.options.push(match &option.value {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name,
            });
        }
    }
    limit(&mut conf, &mut warnings);
    (conf, warnings)
}

/// The cluster's DNS first, and the node's search domains after the cluster's.
fn cluster(pod: &Pod, dns: &DnsConfig) -> ResolvConf {
    let (namespace, domain) = (spec::namespace(pod), &dns.cluster_domain);
    let mut searches = vec![
        format!("{namespace}.svc.{domain}"),
        format!("svc.{domain}"),
        domain.clone(),
    ];
    searches.extend(dns.node.searches.iter().cloned());
    ResolvConf {
        nameservers: dns.cluster_dns.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

/// Cuts what resolvers would not read.
fn limit(conf: &mut ResolvConf, warnings: &mut Vec<(&'static str, String)>) {
    if conf.nameservers.len() > MAX_NAMESERVERS {
        conf.nameservers.truncate(MAX_NAMESERVERS);
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            conf.nameservers.join(" ")
        );
        warnings.push(("DNSConfigForming", message));
    }
    let before = conf.searches.len();
    conf.searches.truncate(MAX_SEARCHES);
    while conf.searches.join(" ").len() > MAX_SEARCH_CHARS {
        conf.searches.pop();
    }
    if conf.searches.len() < before {
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            conf.searches.join(" ")
        );
        warnings.push(("DNSConfigForming", message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::{Value, json};

    fn dns() -> DnsConfig {
        DnsConfig {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            node: ResolvConf::parse("# x\nnameserver 192.0.2.53\nsearch corp.example\n"),
        }
    }

    fn conf(mut extra: Value, dns: &DnsConfig) -> (String, Vec<&'static str>) {
        extra["containers"] = json!([]);
        let (conf, warnings) = resolv_conf(&sample::from(extra), dns);
        (
            conf.text(),
            warnings.into_iter().map(|(reason, _)| reason).collect(),
        )
    }

    #[test]
    fn policies_choose_between_cluster_node_and_nothing() {
        let cluster = "search default.svc.cluster.local svc.cluster.local cluster.local corp.example\n\
            nameserver 10.96.0.10\noptions ndots:5\n";
        let node = "search corp.example\nnameserver 192.0.2.53\n";
        let table = [
            (json!({}), cluster),
            (
                json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
                node,
            ),
            (
                json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                cluster,
            ),
            (json!({"dnsPolicy": "Default"}), node),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}),
                "nameserver 1.1.1.1\n",
            ),
        ];
        for (spec, want) in table {
            assert_eq!(
                conf(spec.clone(), &dns()),
                (want.to_owned(), vec![]),
                "{spec}"
            );
        }
    }

    #[test]
    fn the_pods_own_options_replace_and_add() {
        let own =
            json!({"dnsConfig": {"options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]}});
        assert!(conf(own, &dns()).0.ends_with("options ndots:1 edns0\n"));
    }

    #[test]
    fn what_resolvers_would_not_read_is_cut_and_said() {
        let servers: Vec<_> = (1..=4).map(|n| format!("10.0.0.{n}")).collect();
        let searches: Vec<_> = (1..=40).map(|n| format!("s{n}.example")).collect();
        let own = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": servers, "searches": searches}});
        let (text, warnings) = conf(own, &dns());
        assert_eq!(text.matches("nameserver").count(), 3);
        assert_eq!(text.matches("example").count(), 32);
        assert_eq!(warnings, ["DNSConfigForming", "DNSConfigForming"]);
    }

    #[test]
    fn without_cluster_dns_the_nodes_is_used_and_said() {
        let dns = DnsConfig {
            cluster_dns: vec![],
            ..dns()
        };
        let (text, warnings) = conf(json!({}), &dns);
        assert_eq!(text, "search corp.example\nnameserver 192.0.2.53\n");
        assert_eq!(warnings, ["MissingClusterDNS"]);
    }
}
