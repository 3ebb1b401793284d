//! An HTTPS client that trusts every server, with or without a certificate of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::fixture::{ClientCertificate, Fixture};

/// Why a request came to nothing: the handshake, or the connection.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(super) struct Client {
    address: SocketAddr,
    tls: TlsConnector,
    token: Option<&'static str>,
}

impl Client {
    /// A client that the API server would be.
    pub(super) fn admin(fixture: &Fixture) -> Self {
        let certificate = fixture.ca.issue("admin", "system:masters", false);
        Self::new(fixture.address, Some(certificate), None)
    }

    pub(super) fn new(
        address: SocketAddr,
        certificate: Option<ClientCertificate>,
        token: Option<&'static str>,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Trusting(provider)));
        let config = match certificate {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        Self {
            address,
            tls: TlsConnector::from(Arc::new(config)),
            token,
        }
    }

    pub(super) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await?;
        self.tls
            .connect(ServerName::try_from("localhost").unwrap(), tcp)
            .await
    }

    /// Sends a request on a connection of its own.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> Result<Response<Incoming>, Failure> {
        let io = TokioIo::new(self.connect().await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        Ok(sender
            .send_request(request.body(Empty::<Bytes>::new())?)
            .await?)
    }

    /// GET: status and body.
    pub(super) async fn get(&self, path: &str) -> Result<(StatusCode, String), Failure> {
        let response = self.send(Method::GET, path, &[]).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Opens a WebSocket; the protocol that the server chose is in the headers.
    pub(super) async fn websocket(
        &self,
        path: &str,
        protocol: &'static str,
    ) -> Result<(WebSocketStream<TlsStream<TcpStream>>, HeaderMap), Failure> {
        let mut request = format!("wss://localhost{path}").into_client_request()?;
        if !protocol.is_empty() {
            let name = HeaderName::from_static("sec-websocket-protocol");
            request
                .headers_mut()
                .insert(name, HeaderValue::from_static(protocol));
        }
        if let Some(token) = self.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"))?;
            request.headers_mut().insert("authorization", value);
        }
        let stream = self.connect().await?;
        let (socket, response) = tokio_tungstenite::client_async(request, stream).await?;
        Ok((socket, response.headers().clone()))
    }
}

/// Takes every server for the right one.
#[derive(Debug)]
pub(super) struct Trusting(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, schemes)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, schemes)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
