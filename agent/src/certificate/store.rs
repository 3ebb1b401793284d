//! Certificates with their keys on disk.
//!
//! ```text
//! DIR/STEM-current.pem               link to the newest; renamed into place
//! DIR/STEM-2026-11-29-23-20-05.pem   certificate chain and key, mode 0600
//! DIR/STEM.key.tmp                   the key of a request that is not signed yet
//! ```
//! Everything here blocks; files are small.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rcgen::KeyPair;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use super::{CertificateError, Kind};

/// The certificates of one kind.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    kind: Kind,
}

/// Whose a certificate is, and from when to when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Common name of its subject.
    pub common_name: String,
    /// Valid from.
    pub not_before: Timestamp,
    /// Valid until.
    pub not_after: Timestamp,
}

impl Store {
    /// In this directory, which is made when something is written.
    pub fn new(dir: &Path, kind: Kind) -> Self {
        Self {
            dir: dir.to_owned(),
            kind,
        }
    }

    /// The file of the certificate in use; it may be absent.
    pub fn current(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.kind.stem()))
    }

    /// The certificate in use; none when there is none that can be used with its key.
    pub fn facts(&self) -> Option<Facts> {
        let pem = fs::read(self.current()).ok()?;
        PrivateKeyDer::from_pem_slice(&pem).ok()?;
        facts(&pem)
    }

    /// The key of the request under way; made when there is none. It outlives a restart, so that the next agent
    /// waits for the same request.
    pub(super) fn pending_key(&self) -> Result<KeyPair, CertificateError> {
        let path = self.pending();
        let known = fs::read_to_string(&path).ok();
        if let Some(key) = known.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
            return Ok(key);
        }
        let key = KeyPair::generate()?;
        self.make_dir()?;
        let draft = self.dir.join(format!(".{}.key", self.kind.stem()));
        write(&draft, key.serialize_pem().as_bytes())
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(failed("write", &path))?;
        Ok(key)
    }

    /// Forgets the key of a request that came to nothing.
    pub(super) fn drop_pending_key(&self) {
        // Absent is as well.
        let _ = fs::remove_file(self.pending());
    }

    /// Puts a certificate into use, and removes those before it.
    pub(super) fn save(
        &self,
        certificate: &str,
        key: &KeyPair,
        now: Timestamp,
    ) -> Result<(), CertificateError> {
        self.make_dir()?;
        let stem = self.kind.stem();
        let name = format!("{stem}-{}.pem", now.strftime("%Y-%m-%d-%H-%M-%S"));
        let path = self.dir.join(&name);
        let text = format!("{}\n{}", certificate.trim_end(), key.serialize_pem());
        let (draft, link) = (
            self.dir.join(format!(".{stem}.pem")),
            self.dir.join(format!(".{stem}.link")),
        );
        write(&draft, text.as_bytes())
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(failed("write", &path))?;
        let _ = fs::remove_file(&link);
        symlink(&name, &link)
            .and_then(|()| fs::rename(&link, self.current()))
            .and_then(|()| fs::File::open(&self.dir)?.sync_all())
            .map_err(failed("write", &self.current()))?;
        self.drop_pending_key();
        self.remove_older(&name);
        Ok(())
    }

    fn remove_older(&self, newest: &str) {
        let stem = format!("{}-2", self.kind.stem());
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let dated = name
                .to_str()
                .is_some_and(|name| name.starts_with(&stem) && name.ends_with(".pem"));
            if dated && name != newest {
                // One that stays is not used by anybody.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn pending(&self) -> PathBuf {
        self.dir.join(format!("{}.key.tmp", self.kind.stem()))
    }

    fn make_dir(&self) -> Result<(), CertificateError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(failed("create", &self.dir))
    }
}

/// What a certificate says of itself; the first one of a chain.
pub fn facts(pem: &[u8]) -> Option<Facts> {
    for block in x509_parser::pem::Pem::iter_from_buffer(pem) {
        let block = block.ok()?;
        if block.label != "CERTIFICATE" {
            continue;
        }
        let certificate = block.parse_x509().ok()?;
        let time =
            |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        let common_name = certificate.subject().iter_common_name().next();
        return Some(Facts {
            common_name: common_name?.as_str().ok()?.to_owned(),
            not_before: time(certificate.validity().not_before)?,
            not_after: time(certificate.validity().not_after)?,
        });
    }
    None
}

/// Writes a file that only root reads, durably.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub(super) fn failed(
    verb: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CertificateError {
    let path = path.to_owned();
    move |source| CertificateError::File { verb, path, source }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, DnType};

    use super::*;

    /// A certificate of a node, valid for the years given.
    pub(crate) fn certificate(key: &KeyPair, node: &str, years: (i32, i32)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("system:node:{node}"));
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        params.self_signed(key).unwrap().pem()
    }

    #[test]
    fn the_newest_certificate_is_current_and_only_roots() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(&dir.path().join("pki"), Kind::Client);
        assert_eq!(store.facts(), None);
        let key = store.pending_key().unwrap();
        assert_eq!(
            store.pending_key().unwrap().serialize_pem(),
            key.serialize_pem(),
            "a key outlives the agent until it has its certificate"
        );
        for (second, years) in [(1, (2020, 2021)), (2, (2025, 2027))] {
            let time = Timestamp::from_second(1_700_000_000 + second).unwrap();
            let pem = certificate(&key, "n1", years);
            store.save(&pem, &key, time).unwrap();
        }
        let facts = store.facts().unwrap();
        assert_eq!(facts.common_name, "system:node:n1");
        assert_eq!(facts.not_after.to_string(), "2027-01-01T00:00:00Z");
        let mode = fs::metadata(store.current()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut names: Vec<_> = fs::read_dir(dir.path().join("pki"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "kubelet-client-2023-11-14-22-13-22.pem",
                "kubelet-client-current.pem"
            ]
        );
    }

    #[test]
    fn what_is_broken_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), Kind::Serving);
        let key = KeyPair::generate().unwrap();
        let alone = certificate(&key, "n1", (2020, 2021));
        for text in ["", "rubbish", &alone, &alone[..100]] {
            fs::write(store.current(), text).unwrap();
            assert_eq!(store.facts(), None, "{text}");
        }
        fs::write(dir.path().join("kubelet-server.key.tmp"), "rubbish").unwrap();
        store.pending_key().unwrap();
    }
}
