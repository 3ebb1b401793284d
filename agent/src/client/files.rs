//! Credentials that somebody else renews on disk: the files that a kubeconfig names, and the kubeconfig itself.
//!
//! A node whose certificate is kept by a tool of its operator must not need a restart before the old one expires.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::Kubeconfig;

use super::{ApiServer, ClientError, config_message};

/// How often the files are looked at, as other clients of Kubernetes do.
const LOOK: Duration = Duration::from_secs(300);

/// Uses what the files hold whenever that has changed. `identity` is asked for what [`load`](super::load) takes by that
/// name. Does not return.
pub async fn follow(
    server: ApiServer,
    kubeconfig: PathBuf,
    identity: impl Fn() -> Option<PathBuf>,
) {
    let mut known = state(&kubeconfig, identity().as_deref()).ok();
    loop {
        tokio::time::sleep(LOOK).await;
        let identity = identity();
        match look(&server, &kubeconfig, identity.as_deref(), &mut known).await {
            Ok(false) => {}
            Ok(true) => tracing::info!(
                kubeconfig = %kubeconfig.display(),
                "credentials have changed on disk and are used"
            ),
            // Half of it may not be written yet.
            Err(error) => tracing::warn!(%error, "credentials on disk cannot be used yet"),
        }
    }
}

/// Whether there were other ones than `known`; then they are used and known.
async fn look(
    server: &ApiServer,
    kubeconfig: &Path,
    identity: Option<&Path>,
    known: &mut Option<u64>,
) -> Result<bool, ClientError> {
    let found = state(kubeconfig, identity)?;
    if *known == Some(found) {
        return Ok(false);
    }
    server.renew(kubeconfig, identity).await?;
    *known = Some(found);
    Ok(true)
}

/// A number that changes with what any of the files holds.
fn state(path: &Path, identity: Option<&Path>) -> Result<u64, ClientError> {
    let config = Kubeconfig::read_from(path).map_err(|error| ClientError {
        path: path.to_owned(),
        message: config_message(&error),
    })?;
    let clusters = config.clusters.into_iter().filter_map(|one| one.cluster);
    let users = config
        .auth_infos
        .into_iter()
        .filter_map(|one| one.auth_info);
    let mut files = vec![path.to_owned()];
    files.extend(identity.map(Path::to_owned));
    files.extend(
        clusters
            .filter_map(|one| one.certificate_authority)
            .map(PathBuf::from),
    );
    for user in users {
        let named = [user.client_certificate, user.client_key];
        files.extend(named.into_iter().flatten().map(PathBuf::from));
    }
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).ok().hash(&mut hasher);
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with its key, PEM.
    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[tokio::test]
    async fn credentials_that_change_on_disk_are_used_once_they_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let path = dir.path().join("node.kubeconfig");
        put(
            "node.kubeconfig",
            "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
             clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca.pem}}]\n\
             users: [{name: u, user: {client-certificate: node.pem, client-key: node.key}}]\n",
        );
        let (certificate, key) = pair();
        for (name, text) in [
            ("ca.pem", &certificate),
            ("node.pem", &certificate),
            ("node.key", &key),
        ] {
            put(name, text);
        }
        let server = super::super::load(&path, None).await.unwrap();
        let mut known = state(&path, None).ok();
        let mut used = async || look(&server, &path, None, &mut known).await;
        assert!(!used().await.unwrap());
        let (certificate, key) = pair();
        put("node.pem", &certificate);
        assert!(used().await.is_err(), "with the key of another one");
        put("node.key", &key);
        assert!(used().await.unwrap());
        assert!(!used().await.unwrap());
        put("ca.pem", &pair().0);
        assert!(used().await.unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(used().await.is_err());
    }
}
