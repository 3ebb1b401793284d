//! Credentials that somebody else renews on disk: the files that a kubeconfig names, and the kubeconfig itself.
//!
//! A node whose certificate is kept by a tool of its operator must not need a restart before the old one expires.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{AuthInfo, Cluster, Context, Kubeconfig};
use tokio::task::spawn_blocking;

use super::{ApiServer, ClientError, config_message};

/// How often the files are looked at, as other clients of Kubernetes do.
const LOOK: Duration = Duration::from_secs(300);
/// Fields of a user that are used as they were when the server was loaded.
const LOADED: [(&str, &str); 6] = [
    ("token", "users[].user.token"),
    ("tokenFile", "users[].user.tokenFile"),
    ("username", "users[].user.username"),
    ("password", "users[].user.password"),
    ("exec", "users[].user.exec"),
    ("auth-provider", "users[].user.auth-provider"),
];

/// Says what [`load`](super::load) takes as `identity` now. It may block.
pub type Identity = Arc<dyn Fn() -> Option<PathBuf> + Send + Sync>;

/// Looks whether certificates, keys and the CA are other ones on disk.
pub struct Follower {
    kubeconfig: PathBuf,
    identity: Identity,
    /// None when it could not be read.
    known: Option<Found>,
    /// Fields whose change somebody has been told of.
    told: Vec<&'static str>,
}

/// What the files hold: numbers that change with it.
#[derive(Debug, Clone)]
struct Found {
    authority: u64,
    /// Certificate and key; none when they are the agent's own, which it renews and uses by itself.
    credentials: Option<u64>,
    /// What is not used before a restart, by the name of its field.
    loaded: BTreeMap<&'static str, u64>,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    /// There were other certificates, keys or CAs, and they are used.
    used: bool,
    /// Fields that have changed and are not used.
    unused: Vec<&'static str>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

impl Follower {
    /// Knows what the files hold now. To be called before the server is loaded: then nothing changes unseen.
    pub async fn new(kubeconfig: PathBuf, identity: Identity) -> Self {
        let known = find(&kubeconfig, &identity).await.ok();
        Self {
            kubeconfig,
            identity,
            known: known.map(|(found, _)| found),
            told: Vec::new(),
        }
    }

    /// Uses what the files hold whenever that has changed. Does not return.
    pub async fn follow(mut self, server: ApiServer) {
        loop {
            tokio::time::sleep(LOOK).await;
            let kubeconfig = self.kubeconfig.display().to_string();
            match self.look(&server).await {
                Ok(change) => {
                    if change.used {
                        tracing::info!(
                            kubeconfig,
                            "certificates have changed on disk and are used"
                        );
                    }
                    for field in change.unused {
                        tracing::warn!(
                            kubeconfig,
                            "field {field}: has changed on disk, and is not used before a restart"
                        );
                    }
                }
                // Half of it may not be written yet.
                Err(error) => tracing::warn!(%error, "credentials on disk cannot be used yet"),
            }
        }
    }

    async fn look(&mut self, server: &ApiServer) -> Result<Change, ClientError> {
        let (found, identity) = find(&self.kubeconfig, &self.identity).await?;
        let used = self.known.as_ref().is_none_or(|known| found.is_news(known));
        if used {
            server.renew(&self.kubeconfig, identity.as_deref()).await?;
        }
        let known = self.known.get_or_insert_with(|| found.clone());
        (known.authority, known.credentials) = (found.authority, found.credentials);
        let mut unused = Vec::new();
        for (field, value) in &found.loaded {
            let changed = known.loaded.get(field).is_some_and(|known| known != value);
            if changed && !self.told.contains(field) {
                unused.push(*field);
            }
        }
        self.told.extend(&unused);
        Ok(Change { used, unused })
    }
}

impl Found {
    /// Whether there is something to use that is not in use.
    fn is_news(&self, known: &Self) -> bool {
        let credentials = self.credentials.is_some() && self.credentials != known.credentials;
        self.authority != known.authority || credentials
    }
}

/// What there is now, and the identity that was taken into account.
async fn find(
    kubeconfig: &Path,
    identity: &Identity,
) -> Result<(Found, Option<PathBuf>), ClientError> {
    let (path, identity) = (kubeconfig.to_owned(), identity.clone());
    let read = spawn_blocking(move || {
        let identity = identity();
        Ok((read(&path, identity.is_some())?, identity))
    });
    read.await.unwrap_or_else(|error| {
        Err(ClientError {
            path: kubeconfig.to_owned(),
            message: format!("cannot read: {error}"),
        })
    })
}

/// Reads the files of the current context; those of the user only when the agent has no identity of its own.
fn read(path: &Path, own_identity: bool) -> Result<Found, ClientError> {
    let failed = |message: String| ClientError {
        path: path.to_owned(),
        message,
    };
    let config = Kubeconfig::read_from(path).map_err(|error| failed(config_message(&error)))?;
    let (cluster, user) = current(config)
        .ok_or_else(|| failed("field current-context: names no cluster that there is".into()))?;
    let mut loaded = BTreeMap::from([("clusters[].cluster.server", number(&cluster.server))]);
    // Secrets can be read only as they are written.
    let fields = serde_json::to_value(&user).map_err(|error| failed(error.to_string()))?;
    if !own_identity {
        let numbers = LOADED.map(|(key, field)| (field, number(&fields.get(key))));
        loaded.extend(numbers);
    }
    let authority = content(
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
    );
    let key_data = fields.get("client-key-data").and_then(|data| data.as_str());
    let credentials = (
        content(&user.client_certificate_data, &user.client_certificate),
        content(&key_data.map(str::to_owned), &user.client_key),
    );
    Ok(Found {
        authority: number(&authority),
        credentials: (!own_identity).then(|| number(&credentials)),
        loaded,
    })
}

/// The cluster and the user of the current context.
fn current(config: Kubeconfig) -> Option<(Cluster, AuthInfo)> {
    let current = config.current_context?;
    let mut contexts = config.contexts.into_iter();
    let context: Context = contexts.find(|one| one.name == current)?.context?;
    let mut clusters = config.clusters.into_iter();
    let cluster = clusters.find(|one| one.name == context.cluster)?.cluster?;
    let mut users = config.auth_infos.into_iter();
    let user = users.find(|one| Some(&one.name) == context.user.as_ref());
    Some((
        cluster,
        user.and_then(|one| one.auth_info).unwrap_or_default(),
    ))
}

/// What is used of the two: the data goes before the file.
fn content(data: &Option<String>, file: &Option<String>) -> Option<Vec<u8>> {
    match (data, file) {
        (Some(data), _) => Some(data.clone().into_bytes()),
        (None, Some(file)) => std::fs::read(file).ok(),
        (None, None) => None,
    }
}

fn number(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with its key, PEM.
    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    const KUBECONFIG: &str = "current-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u}}]\n\
        clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca.pem}}]\n\
        users: [{name: u, user: {client-certificate: node.pem, client-key: node.key}}]\n";

    /// A directory with a kubeconfig and its files, and the path of the kubeconfig.
    fn files() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = pair();
        for (name, text) in [
            ("node.kubeconfig", KUBECONFIG),
            ("ca.pem", &certificate),
            ("node.pem", &certificate),
            ("node.key", &key),
        ] {
            put(&dir, name, text);
        }
        let path = dir.path().join("node.kubeconfig");
        (dir, path)
    }

    fn put(dir: &tempfile::TempDir, name: &str, text: &str) {
        std::fs::write(dir.path().join(name), text).unwrap();
    }

    fn change(used: bool, unused: &[&'static str]) -> Change {
        let unused = unused.to_vec();
        Change { used, unused }
    }

    #[tokio::test]
    async fn credentials_that_change_on_disk_are_used_once_they_are_whole() {
        let (dir, path) = files();
        let mut follower = Follower::new(path.clone(), Arc::new(|| None)).await;
        let server = super::super::load(&path, None).await.unwrap();
        let mut used = async || follower.look(&server).await.map(|change| change.used);
        assert!(!used().await.unwrap());
        let (certificate, key) = pair();
        put(&dir, "node.pem", &certificate);
        assert!(used().await.is_err(), "with the key of another one");
        put(&dir, "node.key", &key);
        assert!(used().await.unwrap());
        assert!(!used().await.unwrap());
        put(&dir, "ca.pem", &pair().0);
        assert!(used().await.unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(used().await.is_err());
    }

    #[tokio::test]
    async fn another_server_or_token_is_told_of_once_and_not_called_used() {
        let (dir, path) = files();
        let mut follower = Follower::new(path.clone(), Arc::new(|| None)).await;
        let server = super::super::load(&path, None).await.unwrap();
        let moved = KUBECONFIG.replace("127.0.0.1:1", "127.0.0.1:2");
        put(&dir, "node.kubeconfig", &moved);
        let (told, nothing) = (
            change(false, &["clusters[].cluster.server"]),
            change(false, &[]),
        );
        assert_eq!(follower.look(&server).await.unwrap(), told);
        assert_eq!(follower.look(&server).await.unwrap(), nothing);
        let with_token = moved.replace("{client-certificate", "{token: t, client-certificate");
        put(&dir, "node.kubeconfig", &with_token);
        let told = change(false, &["users[].user.token"]);
        assert_eq!(follower.look(&server).await.unwrap(), told);
        put(&dir, "node.kubeconfig", "");
        assert!(follower.look(&server).await.is_err());
    }

    #[tokio::test]
    async fn what_the_agent_renews_by_itself_is_not_followed_but_the_authority_is() {
        let (dir, path) = files();
        let own = dir.path().join("own.pem");
        let renew = || std::fs::write(&own, [pair().0, pair().1].concat()).unwrap();
        let identity = own.clone();
        let identity = move || identity.exists().then(|| identity.clone());
        let mut follower = Follower::new(path.clone(), Arc::new(identity)).await;
        let server = super::super::load(&path, None).await.unwrap();
        for _ in 0..2 {
            renew();
            assert_eq!(follower.look(&server).await.unwrap(), change(false, &[]));
        }
        let (certificate, key) = pair();
        std::fs::write(&own, [certificate, key].concat()).unwrap();
        put(&dir, "ca.pem", &pair().0);
        assert_eq!(follower.look(&server).await.unwrap(), change(true, &[]));
        std::fs::remove_file(&own).unwrap();
        let given = follower.look(&server).await.unwrap();
        assert_eq!(given, change(true, &[]), "the kubeconfig's counts again");
    }
}
