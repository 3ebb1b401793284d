//! The server's certificate and the check of the clients'.
//!
//! A client certificate is asked for and not required: who has none may come with a bearer token. One that does
//! not chain to the client CA ends the handshake with an alert.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::CipherSuite;
use rustls::RootCertStore;
use rustls::ServerConfig as RustlsServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls12;

/// Years that a self-signed certificate is valid; nobody verifies it, the API server included.
const SELF_SIGNED_YEARS: i32 = 10;

/// Where certificates come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificate chain, PEM (tlsCertFile). Without it a self-signed pair is kept in `cert_dir`.
    pub cert_file: Option<PathBuf>,
    /// Private key, PEM (tlsPrivateKeyFile).
    pub key_file: Option<PathBuf>,
    /// The files are yet to come: until they do, the self-signed pair serves.
    pub may_be_absent: bool,
    /// Directory of the self-signed pair: kubelet.crt and kubelet.key.
    pub cert_dir: PathBuf,
    /// CA certificates of clients, PEM (authentication.x509.clientCAFile).
    pub client_ca_file: Option<PathBuf>,
    /// Whether TLS 1.2 is taken beside 1.3, and with which suites (tlsMinVersion, tlsCipherSuites).
    pub tls12: Tls12,
    /// Names and addresses in a self-signed certificate.
    pub names: Vec<String>,
}

/// The TLS side could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A PEM file has nothing usable in it.
    #[error("{} holds no usable {what}: {message}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// "certificate" or "private key".
        what: &'static str,
        /// Why not.
        message: String,
    },
    /// A file that a field names.
    #[error("field {field}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with the file.
        #[source]
        source: Box<TlsError>,
    },
    /// Only one of tlsCertFile and tlsPrivateKeyFile is set.
    #[error("tlsCertFile and tlsPrivateKeyFile must be set together")]
    HalfAPair,
    /// A self-signed certificate could not be made.
    #[error("cannot make a self-signed certificate")]
    SelfSigned(#[source] rcgen::Error),
    /// Certificate and key do not fit together, or the provider lacks something.
    #[error("cannot set up TLS")]
    Rustls(#[source] rustls::Error),
}

/// Makes the self-signed pair, if it is needed and there is none. A broken one is replaced.
pub(super) fn prepare(config: &TlsConfig) -> Result<(), TlsError> {
    let is_needed = match (&config.cert_file, &config.key_file) {
        (Some(certificate), Some(_)) => config.may_be_absent && !certificate.exists(),
        (None, None) => true,
        _ => false,
    };
    match is_needed && self_signed_pair(config).is_err() {
        true => make_pair(config),
        false => Ok(()),
    }
}

/// Builds the server's TLS configuration. Reads files, and writes none: they may be on their way out.
pub(super) fn server_config(config: &TlsConfig) -> Result<Arc<RustlsServerConfig>, TlsError> {
    let (certificates, key) = match (&config.cert_file, &config.key_file) {
        (Some(certificate), Some(_)) if config.may_be_absent && !certificate.exists() => {
            self_signed_pair(config)?
        }
        (Some(certificate), Some(key)) => (
            read_certificates(certificate).map_err(of("tlsCertFile"))?,
            read_key(key).map_err(of("tlsPrivateKeyFile"))?,
        ),
        (None, None) => self_signed_pair(config)?,
        _ => return Err(TlsError::HalfAPair),
    };
    let mut provider = rustls::crypto::ring::default_provider();
    let versions = match &config.tls12 {
        Tls12::Any => rustls::ALL_VERSIONS,
        Tls12::With(suites) => {
            let of_12 = |suite: CipherSuite| suites.contains(&suite);
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || of_12(suite.suite()));
            rustls::ALL_VERSIONS
        }
        Tls12::Refused => &[&rustls::version::TLS13],
    };
    let provider = Arc::new(provider);
    let builder = RustlsServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(TlsError::Rustls)?;
    let builder = match &config.client_ca_file {
        Some(path) => {
            let verifier = client_verifier(path, provider);
            builder.with_client_cert_verifier(
                verifier.map_err(of("authentication.x509.clientCAFile"))?,
            )
        }
        None => builder.with_no_client_auth(),
    };
    let mut server = builder
        .with_single_cert(certificates, key)
        .map_err(TlsError::Rustls)?;
    // Upgrades exist in HTTP/1.1 only, and nothing here would profit from HTTP/2.
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}

/// Says which field names the file.
fn of(field: &'static str) -> impl FnOnce(TlsError) -> TlsError {
    move |error| TlsError::Field {
        field,
        source: Box::new(error),
    }
}

fn client_verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let pem = |message: String| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        message,
    };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| pem(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|error| pem(error.to_string()))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = |message: String| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        message,
    };
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| pem(error.to_string()))?;
    if certificates.is_empty() {
        return Err(pem("no CERTIFICATE block".to_owned()));
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
        message: error.to_string(),
    })
}

/// The pair in the certificate directory.
fn self_signed_pair(
    config: &TlsConfig,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let (certificate, key) = pair_files(config);
    let (certificates, key) = (read_certificates(&certificate)?, read_key(&key)?);
    fit(&certificates, &key)?;
    Ok((certificates, key))
}

fn make_pair(config: &TlsConfig) -> Result<(), TlsError> {
    let (certificate, key) = pair_files(config);
    let (certificate_pem, key_pem) =
        make_self_signed(&config.names).map_err(TlsError::SelfSigned)?;
    fs::create_dir_all(&config.cert_dir).map_err(|source| TlsError::File {
        path: config.cert_dir.clone(),
        source,
    })?;
    // The key first: a certificate without its key would be taken for a pair by whoever looks at one file.
    write(&key, &key_pem, 0o600)?;
    write(&certificate, &certificate_pem, 0o644)
}

/// Certificate and key.
fn pair_files(config: &TlsConfig) -> (PathBuf, PathBuf) {
    let file = |name| config.cert_dir.join(name);
    (file("kubelet.crt"), file("kubelet.key"))
}

/// Certificate and key must be of one pair: an agent may have died between writing the two.
fn fit(
    certificates: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(), TlsError> {
    let provider = rustls::crypto::ring::default_provider();
    rustls::sign::CertifiedKey::from_der(certificates.to_vec(), key.clone_key(), &provider)
        .map(drop)
        .map_err(TlsError::Rustls)
}

fn make_self_signed(names: &[String]) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(names.to_vec())?;
    let name = names.first().map_or("hanok", String::as_str);
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // From the first of January: a clock that is somewhat behind does not hurt.
    let year = i32::from(jiff::Zoned::now().year());
    params.not_before = rcgen::date_time_ymd(year, 1, 1);
    params.not_after = rcgen::date_time_ymd(year + SELF_SIGNED_YEARS, 1, 1);
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Writes a file as a whole or not at all.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), TlsError> {
    let temporary = path.with_extension("tmp");
    let written = (|| {
        let _ = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    written.map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(dir: &Path) -> TlsConfig {
        TlsConfig {
            cert_dir: dir.to_owned(),
            names: vec!["node-1".to_owned(), "10.1.2.3".to_owned()],
            ..TlsConfig::default()
        }
    }

    /// What a server begins with.
    fn made(config: &TlsConfig) -> Result<Arc<RustlsServerConfig>, TlsError> {
        prepare(config)?;
        server_config(config)
    }

    #[test]
    fn loading_makes_no_files() {
        let dir = tempfile::tempdir().unwrap();
        assert!(server_config(&config(dir.path())).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_self_signed_pair_is_made_once_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        made(&config(dir.path())).unwrap();
        let key = dir.path().join("kubelet.key");
        let first = fs::read(&key).unwrap();
        assert_eq!(
            fs::metadata(&key).unwrap().permissions().mode() & 0o777,
            0o600
        );
        made(&config(dir.path())).unwrap();
        assert_eq!(fs::read(&key).unwrap(), first);
    }

    #[test]
    fn a_broken_self_signed_pair_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubelet.crt"), "rubbish").unwrap();
        made(&config(dir.path())).unwrap();
        assert!(read_certificates(&dir.path().join("kubelet.crt")).is_ok());
    }

    #[test]
    fn a_certificate_of_another_key_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        made(&config(dir.path())).unwrap();
        let key = KeyPair::generate().unwrap().serialize_pem();
        fs::write(dir.path().join("kubelet.key"), key).unwrap();
        made(&config(dir.path())).unwrap();
    }

    #[test]
    fn a_certificate_that_is_yet_to_come_is_stood_in_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubelet-server-current.pem");
        let awaiting = TlsConfig {
            cert_file: Some(file.clone()),
            key_file: Some(file.clone()),
            may_be_absent: true,
            ..config(dir.path())
        };
        made(&awaiting).unwrap();
        fs::write(&file, "rubbish").unwrap();
        assert!(made(&awaiting).is_err());
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.crt");
        fs::write(&ca, "rubbish").unwrap();
        let broken = TlsConfig {
            client_ca_file: Some(ca.clone()),
            ..config(dir.path())
        };
        let error = made(&broken).unwrap_err();
        assert!(error.to_string().contains("clientCAFile"), "{error}");
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.contains(ca.to_str().unwrap()), "{error}");
        let half = TlsConfig {
            cert_file: Some(ca),
            ..config(dir.path())
        };
        assert!(matches!(made(&half), Err(TlsError::HalfAPair)));
    }
}
