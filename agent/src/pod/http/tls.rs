//! TLS that believes every certificate: a probe asks whether somebody answers, not who. HTTP/1.1 is spoken behind it, where a
//! kubelet speaks HTTP/2 with a server that offers it.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::Peers;
use super::wire::Wire;

/// What is said of a server that answers without TLS.
pub(in crate::pod) const NO_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// Shakes hands.
pub(super) async fn connect(
    wire: Wire,
    peers: Peers,
    host: &str,
) -> Result<TlsStream<Wire>, String> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("tls: {host:?} is no name of a server"))?;
    let connector = TlsConnector::from(config()?);
    connector.connect(name, wire).await.map_err(|error| {
        let tls = error.get_ref().and_then(|error| error.downcast_ref());
        match tls {
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                NO_TLS.to_owned()
            }
            Some(error) => format!("tls: {error}"),
            None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
            None => format!("read tcp {peers}: read: {}", super::dial::errno(&error)),
        }
    })
}

/// One configuration for all probes.
fn config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

/// Believes everybody.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
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
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
