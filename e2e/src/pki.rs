//! The lab's certificate authority and the certificates of everybody in it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority that can sign.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    name: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority and writes `NAME.crt` and `NAME.key`.
    ///
    /// # Errors
    /// When a key cannot be made or a file not written.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, "");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        let certificate = params.self_signed(&key)?;
        write(dir, name, &certificate.pem(), &key.serialize_pem())?;
        let issuer = Issuer::new(params, key);
        Ok(Self {
            dir: dir.to_path_buf(),
            name: name.to_owned(),
            issuer,
        })
    }

    /// Path of the authority's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join(format!("{}.crt", self.name))
    }

    /// Makes a certificate for clients and servers (group "" for none) and writes `FILE.crt` and `FILE.key`.
    ///
    /// # Errors
    /// When a name is malformed or a file cannot be written.
    pub fn issue(&self, file: &str, cn: &str, group: &str, names: &[&str]) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = subject(cn, group);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        let key = key.serialize_pem();
        write(&self.dir, file, &certificate, &key)?;
        Ok(Identity { certificate, key })
    }
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Makes the key pair that service account tokens are signed with: `sa.key` and `sa.pub`.
///
/// # Errors
/// When a file cannot be written.
pub fn create_token_keys(dir: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    fs::write(dir.join("sa.key"), key.serialize_pem())?;
    fs::write(dir.join("sa.pub"), key.public_key_pem())?;
    Ok(())
}

fn subject(cn: &str, group: &str) -> rcgen::DistinguishedName {
    let mut name = rcgen::DistinguishedName::new();
    if !group.is_empty() {
        name.push(DnType::OrganizationName, group);
    }
    name.push(DnType::CommonName, cn);
    name
}

fn write(dir: &Path, name: &str, certificate: &str, key: &str) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::write(dir.join(format!("{name}.crt")), certificate)?;
    let path = dir.join(format!("{name}.key"));
    let mut options = fs::File::options();
    let mut file = options
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&path)?;
    std::io::Write::write_all(&mut file, key.as_bytes()).with_context(|| path.display().to_string())
}
