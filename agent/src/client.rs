//! Connections to the API server, as the kubeconfig says.
//!
//! Two clients. Requests share one HTTP/2 connection: a burst of status patches costs no handshakes, and its pings
//! notice a dead server within twenty seconds. Watches are HTTP/1.1, a connection each: a server allows about a
//! hundred streams on a connection, and watches, which never end, would leave none for requests.

#[cfg(test)]
pub(crate) mod fake;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderValue, Request, Uri};
use hyper_rustls::FixedServerNameResolver;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls_pki_types::ServerName;
use tower::{BoxError, ServiceBuilder, ServiceExt};

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
    /// The node's name in the client certificate (`system:node:NAME`), when there is one of this form.
    pub certified_node: Option<String>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Reads the kubeconfig and prepares both clients. Nothing is sent yet.
pub async fn load(path: &Path) -> Result<ApiServer, ClientError> {
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
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(config_message(&error)))?;
    config.headers.push((http::header::USER_AGENT, USER_AGENT));
    connect(&config).map_err(|error| failed(client_message(&error)))
}

/// Both clients for a configuration.
pub fn connect(config: &Config) -> Result<ApiServer, kube::Error> {
    Ok(ApiServer {
        requests: client(config, Version::Http2)?,
        watches: client(config, Version::Http1)?,
        url: config.cluster_url.clone(),
        certified_node: certificate(config).as_deref().and_then(certified_node),
    })
}

/// Which protocol is offered to a TLS server. Without TLS it is always HTTP/1.1.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// A client whose connections are not delayed by Nagle's algorithm and notice a dead server.
fn client(config: &Config, version: Version) -> Result<kube::Client, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(PING_INTERVAL));
    http.set_keepalive_interval(Some(PING_TIMEOUT / 3));
    http.set_keepalive_retries(Some(3));
    let mut builder = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone()).map_err(|error| {
            kube::Error::Service(
                format!("field clusters[].cluster.tls-server-name: {error}").into(),
            )
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = match version {
        Version::Http1 => builder.enable_http1().wrap_connector(http),
        Version::Http2 => builder.enable_all_versions().wrap_connector(http),
    };
    let transport: HyperClient<_, Body> = HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector);
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
fn certificate(config: &Config) -> Option<Vec<u8>> {
    use base64::Engine;
    let auth = &config.auth_info;
    match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => base64::engine::general_purpose::STANDARD
            .decode(data.trim())
            .ok(),
        (None, Some(path)) => std::fs::read(path).ok(),
        (None, None) => None,
    }
}

/// NAME of a certificate for `system:node:NAME`.
fn certified_node(pem: &[u8]) -> Option<String> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    let certificate = block.parse_x509().ok()?;
    let name = certificate
        .subject()
        .iter_common_name()
        .next()?
        .as_str()
        .ok()?;
    Some(name.strip_prefix("system:node:")?.to_owned())
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
        let error = load(&path).await.unwrap_err().to_string();
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
                format!(
                    "current-context: c\n{contexts}clusters: [{{name: k, cluster: {{server: 'not a url'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
                ),
                "field clusters[].cluster.server: ",
            ),
        ] {
            let error = complaint(&text).await;
            assert!(error.contains(part), "{text:?} gave {error:?}");
        }
        let missing = load(Path::new("/nowhere/kubeconfig"))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            missing.starts_with("/nowhere/kubeconfig: cannot read"),
            "{missing}"
        );
    }
}
