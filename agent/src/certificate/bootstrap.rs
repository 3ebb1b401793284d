//! The first certificate: asked for with a bootstrap token, and a kubeconfig around it.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kube::config::{AuthInfo, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};

use super::store::failed;
use super::{CertificateError, Order, request, store};
use crate::client::{self, ClientError};

/// Name of cluster, user and context in the kubeconfig that is written.
const NAMES: (&str, &str, &str) = ("default-cluster", "default-auth", "default-context");

/// A node could not join.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The bootstrap kubeconfig.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No certificate.
    #[error("cannot join by {}", path.display())]
    Certificate {
        /// The bootstrap kubeconfig.
        path: PathBuf,
        /// Why not.
        #[source]
        source: CertificateError,
    },
}

/// Makes `kubeconfig` by the token in `bootstrap`, unless it is there and can be used.
pub async fn bootstrap(
    kubeconfig: &Path,
    bootstrap: &Path,
    order: &Order,
) -> Result<(), BootstrapError> {
    let now = Timestamp::now();
    if is_usable(kubeconfig, now) {
        return Ok(());
    }
    let failed = |source| BootstrapError::Certificate {
        path: bootstrap.to_owned(),
        source,
    };
    if !order.holds(now) {
        let server = client::load(bootstrap, None).await?;
        tracing::info!(server = %server.url, "asking for a certificate with the bootstrap token");
        request::obtain(&server.requests, order)
            .await
            .map_err(failed)?;
    }
    write(kubeconfig, bootstrap, order).map_err(failed)
}

impl Order {
    /// Whether the store has a certificate that serves at this time.
    pub fn holds(&self, now: Timestamp) -> bool {
        let name = format!("system:node:{}", self.node_name);
        self.store
            .facts()
            .is_some_and(|facts| facts.common_name == name && facts.not_after > now)
    }
}

/// Whether a kubeconfig is there and its certificate has not expired. One that is broken counts as usable: whoever
/// uses it will say what is wrong.
fn is_usable(path: &Path, now: Timestamp) -> bool {
    if !path.exists() {
        return false;
    }
    let Ok(config) = Kubeconfig::read_from(path) else {
        return true;
    };
    let users = config
        .auth_infos
        .iter()
        .filter_map(|user| user.auth_info.as_ref());
    let mut expired = users
        .filter_map(client::certificate)
        .filter_map(|pem| store::facts(&pem))
        .filter(|facts| facts.not_after <= now);
    let Some(facts) = expired.next() else {
        return true;
    };
    tracing::warn!(
        kubeconfig = %path.display(), expired = %facts.not_after,
        "the node's certificate has expired, joining anew"
    );
    false
}

/// Writes the node's kubeconfig: the cluster of the other one, and the certificate in the store.
fn write(path: &Path, bootstrap: &Path, order: &Order) -> Result<(), CertificateError> {
    let malformed = |message: String| CertificateError::Malformed {
        place: bootstrap.display().to_string(),
        message,
    };
    let from = Kubeconfig::read_from(bootstrap).map_err(|error| malformed(error.to_string()))?;
    let context = from.current_context.as_deref().and_then(|name| {
        let mut contexts = from.contexts.iter();
        contexts
            .find(|context| context.name == name)?
            .context
            .as_ref()
    });
    let cluster = context.and_then(|context| {
        let mut clusters = from.clusters.iter();
        clusters.find(|cluster| cluster.name == context.cluster)
    });
    let cluster = cluster
        .and_then(|named| named.cluster.clone())
        .ok_or_else(|| malformed("field current-context: names no cluster".to_owned()))?;
    let current = order.store.current().display().to_string();
    let config = Kubeconfig {
        kind: Some("Config".to_owned()),
        api_version: Some("v1".to_owned()),
        clusters: vec![NamedCluster {
            name: NAMES.0.to_owned(),
            cluster: Some(cluster),
            other: Default::default(),
        }],
        auth_infos: vec![NamedAuthInfo {
            name: NAMES.1.to_owned(),
            auth_info: Some(AuthInfo {
                client_certificate: Some(current.clone()),
                client_key: Some(current),
                ..AuthInfo::default()
            }),
            other: Default::default(),
        }],
        contexts: vec![NamedContext {
            name: NAMES.2.to_owned(),
            context: Some(Context {
                cluster: NAMES.0.to_owned(),
                user: Some(NAMES.1.to_owned()),
                ..Context::default()
            }),
            other: Default::default(),
        }],
        current_context: Some(NAMES.2.to_owned()),
        ..Kubeconfig::default()
    };
    // JSON is YAML.
    let text =
        serde_json::to_string_pretty(&config).map_err(|error| malformed(error.to_string()))?;
    let draft = path.with_extension("tmp");
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed("create", dir))?;
    }
    store::write(&draft, text.as_bytes())
        .and_then(|()| std::fs::rename(&draft, path))
        .map_err(failed("write", path))
}

#[cfg(test)]
mod tests {
    use rcgen::KeyPair;

    use super::super::Kind;
    use super::super::store::Store;
    use super::super::store::tests::certificate;
    use super::*;

    const BOOTSTRAP: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u}}]\n\
        clusters: [{name: k, cluster: {server: 'https://10.0.0.9:6443', insecure-skip-tls-verify: true}}]\n\
        users: [{name: u, user: {token: abcdef.0123456789abcdef}}]\n";

    fn order(dir: &Path) -> Order {
        Order {
            kind: Kind::Client,
            node_name: "n1".to_owned(),
            addresses: Vec::new(),
            store: Store::new(dir, Kind::Client),
        }
    }

    fn save(order: &Order, years: (i32, i32)) {
        let key = KeyPair::generate().unwrap();
        let pem = certificate(&key, "n1", years);
        order.store.save(&pem, &key, Timestamp::now()).unwrap();
    }

    #[tokio::test]
    async fn the_kubeconfig_has_the_cluster_and_the_certificate_but_no_token() {
        let dir = tempfile::tempdir().unwrap();
        let (token, kubeconfig) = (
            dir.path().join("bootstrap"),
            dir.path().join("etc/kubeconfig"),
        );
        std::fs::write(&token, BOOTSTRAP).unwrap();
        let order = order(&dir.path().join("pki"));
        // The agent died between the certificate and the kubeconfig: nothing is asked for twice.
        save(&order, (2020, 4000));
        bootstrap(&kubeconfig, &token, &order).await.unwrap();
        let text = std::fs::read_to_string(&kubeconfig).unwrap();
        assert!(!text.contains("0123456789abcdef"), "{text}");
        let server = client::load(&kubeconfig, None).await.unwrap();
        assert_eq!(server.url.to_string(), "https://10.0.0.9:6443/");
        assert_eq!(server.certified_node(), Some("n1"));
        assert!(is_usable(&kubeconfig, Timestamp::now()));
        save(&order, (2020, 2021));
        assert!(!is_usable(&kubeconfig, Timestamp::now()), "it has expired");
    }

    #[test]
    fn a_broken_kubeconfig_is_left_to_its_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        assert!(!is_usable(&path, Timestamp::now()));
        std::fs::write(&path, "{").unwrap();
        assert!(is_usable(&path, Timestamp::now()));
    }
}
