//! What a node without an API server cannot be told: whatever only the server could answer. Pure.

use super::ConfigError;
use super::kubelet::KubeletConfiguration;
use super::resolve::refuse;

/// Refuses a configuration that a standalone node cannot follow.
pub(super) fn check(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    if config.static_pod_path.is_empty() && config.static_pod_url.is_empty() {
        return refuse(
            "--kubeconfig",
            &"",
            "give the file that says how to reach the API server, or, to run static pods without one, --pod-manifest-path (staticPodPath) or --manifest-url (staticPodURL); `hanok run FILE` runs pods in the foreground",
        );
    }
    if config.authentication.webhook.enabled {
        return refuse(
            "--authentication-token-webhook (authentication.webhook.enabled)",
            &true,
            "the API server is asked about tokens, and without --kubeconfig there is none: set false, and let callers in by certificates of a --client-ca-file (authentication.x509.clientCAFile)",
        );
    }
    if config.authorization.mode == "Webhook" {
        return refuse(
            "--authorization-mode (authorization.mode)",
            &config.authorization.mode,
            "the API server is asked what callers may do, and without --kubeconfig there is none: write AlwaysAllow",
        );
    }
    if config.server_tls_bootstrap {
        return refuse(
            "--rotate-server-certificates (serverTLSBootstrap)",
            &true,
            "a cluster signs that certificate, and without --kubeconfig there is none: set false, and give tlsCertFile and tlsPrivateKeyFile, or neither for a self-signed one",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> KubeletConfiguration {
        let mut config = KubeletConfiguration {
            static_pod_path: "/m".into(),
            ..KubeletConfiguration::default()
        };
        config.authentication.webhook.enabled = false;
        config.authorization.mode = "AlwaysAllow".into();
        config
    }

    #[test]
    fn a_standalone_node_needs_static_pods_and_nobody_to_ask() {
        assert!(check(&alone()).is_ok());
        let url = KubeletConfiguration {
            static_pod_path: String::new(),
            static_pod_url: "http://h/pods".into(),
            ..alone()
        };
        assert!(check(&url).is_ok());
        let mut nothing = alone();
        nothing.static_pod_path = String::new();
        let mut tokens = alone();
        tokens.authentication.webhook.enabled = true;
        let mut access = alone();
        access.authorization.mode = "Webhook".into();
        let mut signed = alone();
        signed.server_tls_bootstrap = true;
        for (config, begin, way_out) in [
            (
                nothing,
                "--kubeconfig: \"\": give the file",
                "staticPodPath",
            ),
            (
                tokens,
                "--authentication-token-webhook (authentication.webhook.enabled): \"true\": ",
                "set false",
            ),
            (
                access,
                "--authorization-mode (authorization.mode): \"Webhook\": ",
                "write AlwaysAllow",
            ),
            (
                signed,
                "--rotate-server-certificates (serverTLSBootstrap): \"true\": ",
                "tlsCertFile",
            ),
        ] {
            let error = check(&config).unwrap_err().to_string();
            assert!(error.starts_with(begin), "{error}");
            assert!(error.contains(way_out), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
