//! Static pods from a web server: one manifest, or a list of pods, fetched now and then.
//!
//! What cannot be fetched or read changes nothing: the pods that there are run on. An empty answer is an error and says, as
//! for a kubelet, that there are none. Redirects are not followed, where a kubelet does, since the headers may hold a secret.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;

use super::manifest::{self, Origin};
use super::static_pods::{Gate, StaticPods};
use hanok_runtime::service::chain;

/// Longest answer.
const MAX_SIZE: usize = 10 << 20;
/// An answer that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Failures in a row that are told; later ones say the same.
const TOLD: u32 = 3;

/// Where manifests are fetched from.
#[derive(Debug, Clone)]
pub struct UrlSource {
    /// The URL, of http or https.
    pub url: Uri,
    /// Headers of the request.
    pub headers: HeaderMap,
    /// Name of the node.
    pub node_name: String,
    /// How often they are fetched.
    pub every: Duration,
}

/// Why nothing could be had.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Request(String),
    #[error("the server answered {0}")]
    Status(StatusCode),
    #[error("the answer is empty")]
    Empty,
    #[error("{0}")]
    Manifest(#[from] manifest::ManifestError),
}

type Fetcher = Client<hyper_rustls::HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Tells of the pods, now and whenever they change, until nobody listens any more.
pub async fn follow(source: UrlSource, mut pods: StaticPods, gate: Gate) {
    let client = match client() {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%error, "cannot read the system's certificates: no static pods from {}", source.url);
            return;
        }
    };
    let mut gate = Some(gate);
    let mut failures = 0;
    loop {
        let fetched = fetch(&client, &source).await;
        match &fetched {
            Ok(_) => {
                if failures > 0 {
                    tracing::info!(url = %source.url, "static pods can be fetched again");
                }
                failures = 0;
            }
            Err(error) => {
                failures += 1;
                if failures <= TOLD {
                    tracing::warn!(url = %source.url, "cannot fetch static pods: {error}");
                }
            }
        }
        let found = match fetched {
            Err(FetchError::Empty) => Some(Vec::new()),
            fetched => fetched.ok(),
        };
        if let Some(found) = found {
            if pods.set(found).await.is_err() {
                return;
            }
            if let Some(gate) = gate.take()
                && gate.pass().await.is_err()
            {
                return;
            }
        }
        tokio::time::sleep(source.every).await;
    }
}

fn client() -> std::io::Result<Fetcher> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(TIMEOUT));
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_native_roots()?
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// Fetches once.
async fn fetch(client: &Fetcher, source: &UrlSource) -> Result<Vec<Pod>, FetchError> {
    let text = tokio::time::timeout(TIMEOUT, text(client, source))
        .await
        .map_err(|_| FetchError::Request("no answer".to_owned()))??;
    if text.is_empty() {
        return Err(FetchError::Empty);
    }
    let url = source.url.to_string();
    Ok(manifest::pods(
        &text,
        &source.node_name,
        Origin::Http(&url),
    )?)
}

async fn text(client: &Fetcher, source: &UrlSource) -> Result<String, FetchError> {
    let failed = |error: &dyn std::error::Error| FetchError::Request(chain(error));
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = source.url.clone();
    *request.headers_mut() = source.headers.clone();
    let answer = client.request(request).await.map_err(|e| failed(&e))?;
    if answer.status() != StatusCode::OK {
        return Err(FetchError::Status(answer.status()));
    }
    let body = Limited::new(answer.into_body(), MAX_SIZE).collect().await;
    let bytes = body
        .map_err(|error| FetchError::Request(error.to_string()))?
        .to_bytes();
    String::from_utf8(bytes.into()).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::PodUpdate;
    use std::sync::{Arc, Mutex};
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn pods_are_fetched_with_the_headers_and_survive_a_server_that_fails() {
        let manifest = r#"{"apiVersion": "v1", "kind": "PodList", "items": [{"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}]}"#;
        let empty = r#"{"apiVersion": "v1", "kind": "PodList", "items": []}"#;
        let answers = vec![
            (500, ""),
            (200, manifest),
            (200, "kind: ["),
            (200, empty),
            (200, manifest),
            (200, ""),
        ];
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let app = axum::Router::new().fallback(move |headers: HeaderMap| {
            let answers = answers.clone();
            async move {
                assert_eq!(headers["metadata-flavor"], "x");
                let (code, text) = answers.lock().unwrap().next().unwrap_or((500, ""));
                (StatusCode::from_u16(code).unwrap(), text)
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let mut headers = HeaderMap::new();
        headers.insert("metadata-flavor", "x".parse().unwrap());
        let source = UrlSource {
            url: format!("http://{address}/pods").parse().unwrap(),
            headers,
            node_name: "n1".into(),
            every: Duration::from_millis(20),
        };
        let (updates, mut received) = mpsc::channel(8);
        let pods = StaticPods::new("http", updates.clone(), None);
        let task = tokio::spawn(follow(source, pods, Gate::new(1, updates)));
        let mut told = Vec::new();
        while told.len() < 5 {
            let update = tokio::time::timeout(Duration::from_secs(20), received.recv());
            told.push(match update.await.unwrap().unwrap() {
                PodUpdate::Apply(pod) => crate::pod::spec::name(&pod).to_owned(),
                PodUpdate::Gone(_) => "gone".to_owned(),
                PodUpdate::Synced => "synced".to_owned(),
            });
        }
        assert_eq!(told, ["a-n1", "synced", "gone", "a-n1", "gone"]);
        task.abort();
        server.abort();
    }
}
