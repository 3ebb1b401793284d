//! HTTP as the registry client needs it: connections per TLS setting, deadlines, redirects without secrets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::RegistryError;
use super::hosts::Tls;

/// Most redirects of one request.
const MAX_REDIRECTS: u32 = 5;
/// What we call ourselves.
const USER_AGENT: &str = concat!("hanok/", env!("CARGO_PKG_VERSION"));

type Connection = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A request that can be sent again.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) accept: Option<&'static str>,
    pub(crate) authorization: Option<String>,
    /// First byte wanted.
    pub(crate) range_from: Option<u64>,
    pub(crate) form: Option<String>,
}

impl Request {
    pub(crate) fn get(url: String) -> Self {
        Self {
            method: Method::GET,
            url,
            accept: None,
            authorization: None,
            range_from: None,
            form: None,
        }
    }

    pub(crate) fn post(url: String, form: String) -> Self {
        Self {
            method: Method::POST,
            form: Some(form),
            ..Self::get(url)
        }
    }
}

/// Sends requests.
#[derive(Debug)]
pub(crate) struct Transport {
    connections: Mutex<HashMap<Tls, Connection>>,
    response_timeout: Duration,
    stall_timeout: Duration,
}

impl Transport {
    pub(crate) fn new(response_timeout: Duration, stall_timeout: Duration) -> Self {
        Self {
            connections: Mutex::default(),
            response_timeout,
            stall_timeout,
        }
    }

    /// Sends a request and follows redirects. A redirect to another origin loses the secret and the right
    /// to skip certificate checks; one from https to http is refused.
    pub(crate) async fn send(
        &self,
        request: &Request,
        tls: &Tls,
    ) -> Result<Response<Incoming>, RegistryError> {
        let (mut request, mut tls) = (request.clone(), tls.clone());
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&request, &tls).await?;
            let status = response.status();
            let Some(location) = response.headers().get(header::LOCATION) else {
                return Ok(response);
            };
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let refuse = |why| RegistryError::Redirect {
                url: request.url.clone(),
                why,
            };
            let from: Uri = request.url.parse().map_err(|_| refuse("bad URL"))?;
            let location = location.to_str().map_err(|_| refuse("bad Location"))?;
            let to = join(&from, location).ok_or_else(|| refuse("bad Location"))?;
            if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
                return Err(refuse("it leads from https to http"));
            }
            if (from.scheme_str(), from.authority()) != (to.scheme_str(), to.authority()) {
                request.authorization = None;
                tls.skip_verify = false;
            }
            request.url = to.to_string();
        }
        Err(RegistryError::Redirect {
            url: request.url,
            why: "too many redirects",
        })
    }

    /// Sends a request; a redirect is an answer like any other.
    pub(crate) async fn send_once(
        &self,
        request: &Request,
        tls: &Tls,
    ) -> Result<Response<Incoming>, RegistryError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| RegistryError::Request {
            method: request.method.to_string(),
            url: without_query(&request.url),
            source,
        };
        let mut builder = hyper::Request::builder()
            .method(&request.method)
            .uri(&request.url)
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(accept) = request.accept {
            builder = builder.header(header::ACCEPT, accept);
        }
        if let Some(secret) = &request.authorization {
            let mut value = HeaderValue::from_str(secret).map_err(|e| failed(e.into()))?;
            value.set_sensitive(true);
            builder = builder.header(header::AUTHORIZATION, value);
        }
        if let Some(from) = request.range_from {
            builder = builder.header(header::RANGE, format!("bytes={from}-"));
        }
        if request.form.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let body = Full::new(Bytes::from(request.form.clone().unwrap_or_default()));
        let message = builder.body(body).map_err(|e| failed(e.into()))?;
        let connection = self.connection(tls).await?;
        match tokio::time::timeout(self.response_timeout, connection.request(message)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(e)) => Err(failed(e.into())),
            Err(_) => Err(failed("no answer in time".into())),
        }
    }

    /// The next part of a body; none at its end.
    pub(crate) async fn frame(
        &self,
        response: &mut Response<Incoming>,
    ) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let frame = tokio::time::timeout(self.stall_timeout, response.body_mut().frame());
            let frame = match frame.await {
                Err(_) => return Err(RegistryError::Body("nothing arrived in time".into())),
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => frame.map_err(|e| RegistryError::Body(e.into()))?,
            };
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// A whole body of at most `limit` bytes.
    pub(crate) async fn body(
        &self,
        response: &mut Response<Incoming>,
        limit: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut bytes = Vec::new();
        let all = async {
            while let Some(data) = self.frame(response).await? {
                if bytes.len() + data.len() > limit {
                    return Err(RegistryError::TooLarge(limit));
                }
                bytes.extend_from_slice(&data);
            }
            Ok(())
        };
        // A document is small: one that trickles is no better than one that stops.
        tokio::time::timeout(2 * self.stall_timeout, all)
            .await
            .unwrap_or_else(|_| Err(RegistryError::Body("it did not arrive in time".into())))?;
        Ok(bytes)
    }

    async fn connection(&self, tls: &Tls) -> Result<Connection, RegistryError> {
        let known = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(tls)
            .cloned();
        if let Some(connection) = known {
            return Ok(connection);
        }
        let settings = tls.clone();
        // Reading the system's certificates takes milliseconds.
        let config = tokio::task::spawn_blocking(move || client_config(&settings))
            .await
            .map_err(|e| RegistryError::Body(e.into()))??;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.response_timeout));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let connection: Connection = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(8)
            .build(connector);
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(tls.clone(), connection.clone());
        Ok(connection)
    }
}

fn client_config(tls: &Tls) -> Result<ClientConfig, RegistryError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| RegistryError::Tls(e.into()))?;
    if tls.skip_verify {
        return Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
            .with_no_client_auth());
    }
    let mut roots = RootCertStore::empty();
    // Without any root every certificate is refused, which says enough.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for path in &tls.ca {
        let failed = |e: rustls::pki_types::pem::Error| {
            RegistryError::Tls(format!("failed to read {}: {e}", path.display()).into())
        };
        for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
            let certificate = certificate.map_err(failed)?;
            roots
                .add(certificate)
                .map_err(|e| RegistryError::Tls(e.into()))?;
        }
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// For `skip_verify`: takes any certificate, as its owner asked for.
#[derive(Debug)]
struct Unchecked(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Resolves a Location against the URL it came from.
fn join(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let full = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let dir = from.path().rsplit_once('/').map_or("", |(dir, _)| dir);
        format!("{scheme}://{authority}{dir}/{location}")
    };
    let uri: Uri = full.parse().ok()?;
    let fits = matches!(uri.scheme_str(), Some("http" | "https"));
    let userless = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    (fits && userless).then_some(uri)
}

/// Queries of storage services carry signatures; they are not for logs.
fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_taken_relative_to_where_it_came_from() {
        let from: Uri = "https://a:1/v2/x/blobs/y?q=1".parse().unwrap();
        for (location, want) in [
            ("https://b/z", Some("https://b/z")),
            ("//b/z", Some("https://b/z")),
            ("/z?s=1", Some("https://a:1/z?s=1")),
            ("z", Some("https://a:1/v2/x/blobs/z")),
            ("file:///etc/passwd", None),
            ("https://u:p@b/", None),
        ] {
            assert_eq!(
                join(&from, location).map(|uri| uri.to_string()).as_deref(),
                want
            );
        }
    }
}
