//! Connections to the API server, as the kubeconfig says.
//!
//! Two clients. Requests share one HTTP/2 connection: a burst of status patches costs no handshakes, and its pings
//! notice a dead server within twenty seconds. Watches are HTTP/1.1, a connection each: a server allows about a
//! hundred streams on a connection, and watches, which never end, would leave none for requests.

#[cfg(test)]
pub(crate) mod fake;
pub mod files;
mod transport;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderValue, Request, Uri};
use kube::Config;
use kube::client::{Body, ConfigExt};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::{BoxError, ServiceBuilder, ServiceExt};

use crate::certificate::store::{self, Facts};
use transport::{Transport, Version};

/// An idle connection is probed after this time, and given up when there is no answer after [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that does not take a connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The agent's name for itself, in the server's audit log and metrics.
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("hanok/", env!("CARGO_PKG_VERSION")));

/// The API server cannot be spoken to as the kubeconfig says: one line that names file and field.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ClientError {
    /// The kubeconfig.
    pub path: PathBuf,
    /// What is wrong with it.
    pub message: String,
}

/// The API server, in two kinds of connection.
#[derive(Clone)]
pub struct ApiServer {
    /// For everything that has an end.
    pub requests: kube::Client,
    /// For watches.
    pub watches: kube::Client,
    /// Where it is.
    pub url: Uri,
    /// What the client certificate says, when there is one.
    pub certificate: Option<Facts>,
    transports: [Transport; 2],
}

impl ApiServer {
    /// The node's name in the client certificate (`system:node:NAME`), when there is one of this form.
    pub fn certified_node(&self) -> Option<&str> {
        let facts = self.certificate.as_ref()?;
        facts.common_name.strip_prefix("system:node:")
    }

    /// Uses another certificate from now on; the arguments are those of [`load`].
    pub async fn renew(&self, path: &Path, identity: Option<&Path>) -> Result<(), ClientError> {
        let config = configuration(path, identity).await?;
        let renewed = self
            .transports
            .iter()
            .try_for_each(|one| one.renew(&config));
        renewed.map_err(|error| ClientError {
            path: path.to_owned(),
            message: client_message(&error),
        })
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Reads the kubeconfig and prepares both clients. Nothing is sent yet. `identity` is a PEM file with certificate
/// and key to use in place of the kubeconfig's credentials.
pub async fn load(path: &Path, identity: Option<&Path>) -> Result<ApiServer, ClientError> {
    let config = configuration(path, identity).await?;
    connect(&config).map_err(|error| ClientError {
        path: path.to_owned(),
        message: client_message(&error),
    })
}

/// What a kubeconfig says.
async fn configuration(path: &Path, identity: Option<&Path>) -> Result<Config, ClientError> {
    let failed = |message: String| ClientError {
        path: path.to_owned(),
        message,
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| failed(format!("cannot read the kubeconfig: {error}")))?;
    // kube reads an empty or foreign document as a kubeconfig without anything in it.
    if !text.contains("clusters") {
        return Err(failed(
            "field clusters: missing, so this is no kubeconfig".into(),
        ));
    }
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(config_message(&error)))?;
    if let Some(user) = missing_user(&kubeconfig) {
        return Err(failed(format!(
            "field contexts[].context.user: {user:?}: no such user in field users"
        )));
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(config_message(&error)))?;
    if let Some(identity) = identity {
        let identity = Some(identity.display().to_string());
        config.auth_info = AuthInfo {
            client_certificate: identity.clone(),
            client_key: identity,
            ..AuthInfo::default()
        };
    }
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        // Without any CA every server would be refused, again and again.
        return Err(failed(
            "field clusters[].cluster.certificate-authority: holds no certificate (PEM)".into(),
        ));
    }
    config.headers.push((http::header::USER_AGENT, USER_AGENT));
    Ok(config)
}

/// The user of the current context, when there is none of this name: kube would go on without credentials.
fn missing_user(config: &Kubeconfig) -> Option<String> {
    let current = config.current_context.as_deref()?;
    let mut contexts = config.contexts.iter();
    let context = contexts.find(|context| context.name == current)?;
    let user = context.context.as_ref()?.user.clone()?;
    let known = config.auth_infos.iter().any(|one| one.name == user);
    (!known && !user.is_empty()).then_some(user)
}

/// Both clients for a configuration.
pub fn connect(config: &Config) -> Result<ApiServer, kube::Error> {
    let requests = Transport::new(config, Version::Http2)?;
    let watches = Transport::new(config, Version::Http1)?;
    Ok(ApiServer {
        requests: client(config, requests.clone())?,
        watches: client(config, watches.clone())?,
        url: config.cluster_url.clone(),
        certificate: certificate(&config.auth_info)
            .as_deref()
            .and_then(store::facts),
        transports: [requests, watches],
    })
}

/// A client over connections of ours.
fn client(config: &Config, transport: Transport) -> Result<kube::Client, kube::Error> {
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(transport)
        .map_request(|request: Request<Body>| request);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// Which field of a kubeconfig an error is about, in front of its text.
fn config_message(error: &KubeconfigError) -> String {
    let field = match error {
        KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_) => {
            "field current-context: "
        }
        KubeconfigError::LoadClusterOfContext(_) => "field contexts[].context.cluster: ",
        KubeconfigError::MissingClusterUrl | KubeconfigError::ParseClusterUrl(_) => {
            "field clusters[].cluster.server: "
        }
        KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => {
            "field clusters[].cluster.certificate-authority: "
        }
        KubeconfigError::LoadClientCertificate(_) => "field users[].user.client-certificate: ",
        KubeconfigError::LoadClientKey(_) => "field users[].user.client-key: ",
        _ => "",
    };
    let text = error.to_string();
    // The parser draws the place under its message.
    let text = text.split("-->").next().unwrap_or_default();
    format!(
        "{field}{}",
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    )
}

/// The same for errors of building a client, which wrap those of the kubeconfig.
fn client_message(error: &kube::Error) -> String {
    if let kube::Error::Service(message) = error {
        return message.to_string();
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(config) = current.downcast_ref::<KubeconfigError>() {
            return config_message(config);
        }
        cause = current.source();
    }
    format!("field users[].user: {error}")
}

/// The client certificate, PEM.
pub(crate) fn certificate(auth: &AuthInfo) -> Option<Vec<u8>> {
    use base64::Engine;
    match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => base64::engine::general_purpose::STANDARD
            .decode(data.trim())
            .ok(),
        (None, Some(path)) => std::fs::read(path).ok(),
        (None, None) => None,
    }
}

/// What to do about a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The object does not exist (404).
    NotFound,
    /// A precondition or a resource version did not hold, or it exists already (409).
    Conflict,
    /// The server will never take this request (other 4xx).
    Refused,
    /// Try again: the server is away, busy or broken.
    Later,
}

/// Sorts an error of kube.
pub fn failure(error: &kube::Error) -> Failure {
    let kube::Error::Api(status) = error else {
        return Failure::Later;
    };
    match status.code {
        404 => Failure::NotFound,
        409 => Failure::Conflict,
        401 | 403 | 408 | 429 => Failure::Later,
        400..=499 => Failure::Refused,
        _ => Failure::Later,
    }
}

/// The text of an error of kube for a person: the server's own message where there is one, else the chain of causes.
pub fn message(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        let part = current.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        cause = current.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn complaint(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.kubeconfig");
        std::fs::write(&path, text).unwrap();
        let error = load(&path, None).await.unwrap_err().to_string();
        assert!(
            !error.contains('\n') && error.starts_with(&format!("{}: ", path.display())),
            "{error}"
        );
        error
    }

    #[tokio::test]
    async fn a_bad_kubeconfig_is_refused_by_file_and_field() {
        let contexts = "contexts: [{name: c, context: {cluster: k, user: u}}]\n";
        let cluster = "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n";
        for (text, part) in [
            ("".to_owned(), "field clusters: missing"),
            ("clusters: {".to_owned(), "parse"),
            (format!("{contexts}{cluster}"), "field current-context: "),
            (
                format!("current-context: x\n{contexts}{cluster}"),
                "field current-context: ",
            ),
            (
                format!(
                    "current-context: c\n{contexts}{cluster}users: [{{name: u, user: {{client-certificate: /nowhere, client-key: /nowhere}}}}]\n"
                ),
                "/nowhere",
            ),
            (
                format!("current-context: c\n{contexts}{cluster}users: []\n"),
                "field contexts[].context.user: \"u\": no such user",
            ),
            (
                format!(
                    "current-context: c\n{contexts}clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', certificate-authority-data: aGVsbG8=}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
                ),
                "field clusters[].cluster.certificate-authority: holds no certificate",
            ),
            (
                format!(
                    "current-context: c\n{contexts}clusters: [{{name: k, cluster: {{server: 'not a url'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
                ),
                "field clusters[].cluster.server: ",
            ),
        ] {
            let error = complaint(&text).await;
            assert!(error.contains(part), "{text:?} gave {error:?}");
        }
        let missing = load(Path::new("/nowhere/kubeconfig"), None)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            missing.starts_with("/nowhere/kubeconfig: cannot read"),
            "{missing}"
        );
    }
}
