//! Credentials that somebody else renews on disk: the files that a kubeconfig names, and the kubeconfig itself.
//!
//! A node whose certificate is kept by a tool of its operator must not need a restart before the old one expires.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, Context, Kubeconfig};
use tokio::task::spawn_blocking;

use super::{ApiServer, ClientError, certificate, config_message};
use crate::certificate::store;

/// How often the files are looked at, as other clients of Kubernetes do.
const LOOK: Duration = Duration::from_secs(300);
/// The same once the certificate has expired, and nothing else can help.
const LOOK_EXPIRED: Duration = Duration::from_secs(10);
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
    /// The end of the certificate whose expiry somebody has been told of.
    told_expired: Option<Timestamp>,
}

/// What the files hold: numbers that change with it.
#[derive(Debug, Clone)]
struct Found {
    authority: u64,
    /// Certificate and key; none when they are the agent's own, which it renews and uses by itself.
    credentials: Option<u64>,
    /// The agent's own certificate and key.
    own: Option<u64>,
    /// When the certificate expires.
    not_after: Option<Timestamp>,
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
            told_expired: None,
        }
    }

    /// Uses what the files hold whenever that has changed. Does not return.
    pub async fn follow(mut self, server: ApiServer) {
        loop {
            tokio::time::sleep(self.pause(Timestamp::now())).await;
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

    /// The time to the next look. Of a certificate that has expired, somebody is told once.
    fn pause(&mut self, now: Timestamp) -> Duration {
        let Some(not_after) = self.known.as_ref().and_then(|known| known.not_after) else {
            return LOOK;
        };
        let left = Duration::try_from(not_after.duration_since(now)).unwrap_or_default();
        if left.is_zero() && self.told_expired.replace(not_after) != Some(not_after) {
            tracing::error!(
                kubeconfig = %self.kubeconfig.display(),
                "the node's certificate has expired at {not_after}, and the API server refuses all requests: put another one in its place, or restart with --bootstrap-kubeconfig and a token to join anew"
            );
        }
        left.clamp(LOOK_EXPIRED, LOOK)
    }

    async fn look(&mut self, server: &ApiServer) -> Result<Change, ClientError> {
        let (found, identity) = find(&self.kubeconfig, &self.identity).await?;
        let now = Timestamp::now();
        let known = self.known.as_ref();
        let used = known.is_none_or(|known| found.is_news(known, now));
        if used {
            server.renew(&self.kubeconfig, identity.as_deref()).await?;
        }
        let known = self.known.get_or_insert_with(|| found.clone());
        let loaded = std::mem::take(&mut known.loaded);
        *known = Found {
            loaded,
            ..found.clone()
        };
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
    /// Whether there is something to use that is not in use. A certificate of the agent's own that has expired it cannot
    /// renew, so the one that takes its place is somebody else's.
    fn is_news(&self, known: &Self, now: Timestamp) -> bool {
        let credentials = self.credentials.is_some() && self.credentials != known.credentials;
        let expired = known.not_after.is_some_and(|not_after| not_after <= now);
        let own = expired && self.own.is_some() && self.own != known.own;
        self.authority != known.authority || credentials || own
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
        Ok((read(&path, identity.as_deref())?, identity))
    });
    read.await.unwrap_or_else(|error| {
        Err(ClientError {
            path: kubeconfig.to_owned(),
            message: format!("cannot read: {error}"),
        })
    })
}

/// Reads the files of the current context; those of the user only when the agent has no identity of its own.
fn read(path: &Path, identity: Option<&Path>) -> Result<Found, ClientError> {
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
    if identity.is_none() {
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
    let own = identity.and_then(|path| std::fs::read(path).ok());
    let certificate = match identity {
        Some(_) => own.clone(),
        None => certificate(&user),
    };
    Ok(Found {
        authority: number(&authority),
        credentials: identity.is_none().then(|| number(&credentials)),
        own: own.map(|own| number(&own)),
        not_after: certificate
            .as_deref()
            .and_then(store::facts)
            .map(|facts| facts.not_after),
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
mod tests;
