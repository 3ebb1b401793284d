//! From the agent's settings to the server's. Pure.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::{AuthenticationConfig, AuthorizationConfig, ServerConfig, TlsConfig};
use crate::certificate::Kind;
use crate::certificate::store::Store;
use crate::config::Settings;

impl ServerConfig {
    /// What the settings say of the kubelet API; `node_ips` go into a self-signed certificate. Addresses were
    /// checked when the settings were read; one that does not parse is taken for the loopback.
    pub fn from_settings(settings: &Settings, node_ips: &[IpAddr]) -> Self {
        let kubelet = &settings.kubelet;
        let address = |text: &str, port| {
            let ip = text.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
            SocketAddr::new(ip, port)
        };
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let signed = kubelet
            .server_tls_bootstrap
            .then(|| Store::new(&settings.paths.cert_dir, Kind::Serving).current());
        let tls = TlsConfig {
            cert_file: path(&kubelet.tls_cert_file).or(signed.clone()),
            key_file: path(&kubelet.tls_private_key_file).or(signed.clone()),
            may_be_absent: signed.is_some(),
            tls12: settings.tls12.clone(),
            cert_dir: settings.paths.cert_dir.clone(),
            client_ca_file: path(&kubelet.authentication.x509.client_ca_file),
            names: std::iter::once(settings.node_name.clone())
                .chain(node_ips.iter().map(IpAddr::to_string))
                .collect(),
        };
        let mut config = Self::new(
            address(&kubelet.address, kubelet.port),
            &settings.node_name,
            tls,
        );
        config.address = config.address.filter(|_| kubelet.enable_server);
        config.healthz_address = (kubelet.healthz_port != 0)
            .then(|| address(&kubelet.healthz_bind_address, kubelet.healthz_port));
        config.authentication = AuthenticationConfig {
            anonymous: kubelet.authentication.anonymous.enabled,
            webhook: kubelet.authentication.webhook.enabled,
            cache_ttl: kubelet.authentication.webhook.cache_ttl,
        };
        config.authorization = match kubelet.authorization.mode.as_str() {
            "AlwaysAllow" => AuthorizationConfig::AlwaysAllow,
            _ => AuthorizationConfig::Webhook {
                authorized_ttl: kubelet.authorization.webhook.cache_authorized_ttl,
                unauthorized_ttl: kubelet.authorization.webhook.cache_unauthorized_ttl,
            },
        };
        config.stream_idle_timeout = kubelet.streaming_connection_idle_timeout;
        config.debugging_handlers = kubelet.enable_debugging_handlers;
        config
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Machine, Tls12, decode, resolve};
    use crate::flags::Flags;

    fn config(text: &str) -> ServerConfig {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let file = (PathBuf::from("config.yaml"), format!("{head}{text}"));
        let machine = Machine {
            hostname: "node-1".into(),
            program_dir: "/usr/bin".into(),
        };
        let flags = Flags {
            kubeconfig: Some("kubeconfig".into()),
            ..Flags::default()
        };
        let decoded = decode::decode(&[file]).unwrap();
        let settings = resolve(&flags, decoded, &machine).unwrap();
        ServerConfig::from_settings(&settings, &["10.1.2.3".parse().unwrap()])
    }

    #[test]
    fn the_defaults_let_nobody_in_unasked() {
        let config = config("");
        assert_eq!(config.address, Some("0.0.0.0:10250".parse().unwrap()));
        assert_eq!(
            config.healthz_address,
            Some("127.0.0.1:10248".parse().unwrap())
        );
        assert_eq!(config.authentication, AuthenticationConfig::default());
        assert_eq!(config.authorization, AuthorizationConfig::default());
        assert_eq!(config.tls.names, ["node-1", "10.1.2.3"]);
        assert_eq!(
            (config.tls.cert_file, config.tls.client_ca_file),
            (None, None)
        );
        assert_eq!(config.stream_idle_timeout, Duration::from_secs(4 * 3600));
        assert!(config.debugging_handlers);
    }

    #[test]
    fn without_the_server_health_alone_is_served() {
        let config = config("enableServer: false\n");
        assert_eq!(config.address, None);
        assert!(config.healthz_address.is_some());
    }

    #[test]
    fn the_clusters_own_certificate_is_awaited_where_it_will_be() {
        let tls = config("serverTLSBootstrap: true\n").tls;
        let file = Some("/var/lib/hanok/pki/kubelet-server-current.pem".into());
        assert_eq!((tls.cert_file, tls.key_file), (file.clone(), file));
        assert!(tls.may_be_absent);
    }

    #[test]
    fn every_field_of_the_file_counts() {
        let config = config(
            "address: 10.0.0.1\nport: 10350\nhealthzPort: 0\nenableDebuggingHandlers: false\n\
             tlsCertFile: /c\ntlsPrivateKeyFile: /k\ntlsMinVersion: VersionTLS13\nstreamingConnectionIdleTimeout: 1m\n\
             authentication: {x509: {clientCAFile: /ca}, anonymous: {enabled: true}, webhook: {enabled: false}}\n\
             authorization: {mode: AlwaysAllow}\n",
        );
        assert_eq!(config.address, Some("10.0.0.1:10350".parse().unwrap()));
        assert_eq!(config.healthz_address, None);
        assert_eq!(config.tls.cert_file, Some("/c".into()));
        assert_eq!(config.tls.client_ca_file, Some("/ca".into()));
        assert_eq!(config.tls.tls12, Tls12::Refused);
        assert!(config.authentication.anonymous && !config.authentication.webhook);
        assert_eq!(config.authorization, AuthorizationConfig::AlwaysAllow);
        assert_eq!(config.stream_idle_timeout, Duration::from_secs(60));
        assert!(!config.debugging_handlers);
    }
}
