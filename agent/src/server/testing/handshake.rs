//! Which versions and suites of TLS the server takes.

use std::io;
use std::sync::Arc;

use rustls::{CipherSuite, ClientConfig, ProtocolVersion, SupportedProtocolVersion, version};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::client::Trusting;
use super::fixture::{FakeReviewer, Fixture};
use crate::config::Tls12;

// The server's own certificate has a key on an elliptic curve.
const AES_128: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
const AES_256: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
const OF_13: CipherSuite = CipherSuite::TLS13_AES_128_GCM_SHA256;

fn server(tls12: Tls12) -> Fixture {
    Fixture::with(FakeReviewer::default(), |config| config.tls.tls12 = tls12)
}

/// A handshake of a client that has one version and one suite: what both sides came to.
async fn shake(
    server: &Fixture,
    version: &'static SupportedProtocolVersion,
    suite: CipherSuite,
) -> io::Result<Option<ProtocolVersion>> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .retain(|known| known.suite() == suite);
    let provider = Arc::new(provider);
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
        .with_no_client_auth();
    let tcp = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await?;
    Ok(stream.get_ref().1.protocol_version())
}

#[tokio::test]
async fn a_handshake_is_taken_with_the_versions_and_suites_that_are_set() {
    let only_128 = || Tls12::With(vec![AES_128]);
    let tls12 = [(&version::TLS12, AES_128), (&version::TLS12, AES_256)];
    for (set, taken) in [
        (Tls12::Any, [true, true]),
        (only_128(), [true, false]),
        (Tls12::Refused, [false, false]),
    ] {
        let server = server(set.clone());
        for ((version, suite), is_taken) in tls12.into_iter().zip(taken) {
            let found = shake(&server, version, suite).await;
            match is_taken {
                true => assert_eq!(found.unwrap(), Some(ProtocolVersion::TLSv1_2), "{set:?}"),
                // The server says no; it does not just hang up.
                false => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains("received fatal alert"), "{set:?}: {error}");
                }
            }
        }
        let found = shake(&server, &version::TLS13, OF_13).await;
        assert_eq!(found.unwrap(), Some(ProtocolVersion::TLSv1_3), "{set:?}");
    }
}
