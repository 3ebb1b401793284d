//! `list`: every container below the root directory.

use std::fs;
use std::io::ErrorKind;

use super::record::Record;
use super::{OciError, Result, Runtime};

impl Runtime {
    /// The records, by id. One that is being made or removed just now is left out.
    pub fn list(&self) -> Result<Vec<Record>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(OciError::io("read", &self.root))?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let entry = entry.map_err(OciError::io("read", &self.root))?;
            let Some(id) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            match Record::load(&self.root, &id) {
                Ok(record) => records.push(record),
                Err(OciError::NotFound(_) | OciError::Id(_)) => {}
                Err(error) => return Err(error),
            }
        }
        records.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_listed_where_nothing_is() {
        let root = tempfile::tempdir().unwrap();
        for place in ["", "absent"] {
            let runtime = Runtime::new(root.path().join(place), "/shim".into());
            assert!(runtime.list().unwrap().is_empty());
        }
        // What all containers share, and what has no record yet.
        for directory in [".shared", "making", "odd name"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        let runtime = Runtime::new(root.path().to_owned(), "/shim".into());
        assert!(runtime.list().unwrap().is_empty());
        fs::write(root.path().join("making/state.json"), "{").unwrap();
        assert!(runtime.list().is_err());
    }
}
