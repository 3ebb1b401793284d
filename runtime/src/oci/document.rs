//! JSON documents of others: read with a limit, and complained of by field and value.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{OciError, Result};
use crate::json;

/// Longest document, bytes. What is made of one has to fit in a frame of the shim, which is a quarter of this.
pub(super) const MAX: usize = 16 << 20;

/// The bytes of a document, which may come by a pipe.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    read_opened(path, File::open(path).map_err(OciError::io("read", path))?)
}

/// The bytes of a document that is open already.
pub(super) fn read_opened(path: &Path, file: File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(OciError::io("read", path))?;
    match bytes.len() > MAX {
        true => Err(OciError::TooLong(path.to_owned())),
        false => Ok(bytes),
    }
}

/// The value in a document's bytes.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|source| OciError::Parse {
        path: path.to_owned(),
        source,
    })
}

/// A value as what it is to be. Where it is not is looked for once it is known not to be.
pub(super) fn typed<T: DeserializeOwned>(path: &Path, value: &Value) -> Result<T> {
    T::deserialize(value).map_err(|source| OciError::Field {
        path: path.to_owned(),
        field: json::wrong_field::<T, _>(value).unwrap_or_else(|| "the document".to_owned()),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_document_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let file = File::create(&path).unwrap();
        for (length, fits) in [(MAX, true), (MAX + 1, false), (100 << 30, false)] {
            file.set_len(length as u64).unwrap();
            let read = read(&path);
            assert_eq!(read.is_ok(), fits, "{length}");
        }
        let endless = read(Path::new("/dev/zero")).unwrap_err();
        assert!(endless.to_string().contains("/dev/zero"), "{endless}");
    }

    #[test]
    fn an_error_is_told_also_when_it_is_not_found_again() {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        struct Fickle;
        impl<'de> serde::Deserialize<'de> for Fickle {
            fn deserialize<D: serde::Deserializer<'de>>(
                _: D,
            ) -> std::result::Result<Self, D::Error> {
                match COUNT.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(serde::de::Error::custom("not today")),
                    _ => Ok(Self),
                }
            }
        }
        let error = typed::<Fickle>(Path::new("p.json"), &Value::Null)
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "cannot take the document of p.json");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "not today");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_its_field() {
        let value = serde_json::json!({"cwd": "/", "user": {"uid": "root"}});
        let error = typed::<oci_spec::runtime::Process>(Path::new("p.json"), &value).unwrap_err();
        assert_eq!(error.to_string(), "cannot take user.uid of p.json");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("\"root\""), "{source}");
    }
}
