//! `list`: every container below the root directory.

use std::fs;
use std::io::ErrorKind;

use super::record::Record;
use super::{OciError, Result, Runtime};

impl Runtime {
    /// The records, by id, and what is wrong with those that cannot be read: one must not hide the others. One that is
    /// being made or removed just now is left out.
    pub fn list(&self) -> Result<(Vec<Record>, Vec<OciError>)> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Default::default()),
            read => read.map_err(OciError::io("read", &self.root))?,
        };
        let (mut records, mut broken) = (Vec::new(), Vec::new());
        for entry in entries {
            let entry = entry.map_err(OciError::io("read", &self.root))?;
            let Some(id) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            match Record::load(&self.root, &id) {
                Ok(record) => records.push(record),
                Err(OciError::NotFound(_) | OciError::Id(_)) => {}
                Err(error) => broken.push(error),
            }
        }
        records.sort_by(|one, other| one.id.cmp(&other.id));
        Ok((records, broken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids, and how many could not be read.
    fn listed(runtime: &Runtime) -> (Vec<String>, usize) {
        let (records, broken) = runtime.list().unwrap();
        let ids = records.into_iter().map(|record| record.id);
        (ids.collect(), broken.len())
    }

    #[test]
    fn nothing_is_listed_where_nothing_is() {
        let root = tempfile::tempdir().unwrap();
        for place in ["", "absent"] {
            let runtime = Runtime::new(root.path().join(place), "/shim".into());
            assert_eq!(listed(&runtime), (vec![], 0));
        }
        // What all containers share, and what has no record yet.
        for directory in [".shared", "making", "odd name"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        let runtime = Runtime::new(root.path().to_owned(), "/shim".into());
        assert_eq!(listed(&runtime), (vec![], 0));
    }

    #[test]
    fn one_record_that_cannot_be_read_hides_no_other() {
        let root = tempfile::tempdir().unwrap();
        let record = |id: &str| {
            format!(
                r#"{{"id":"{id}","pid":0,"started":0,"bundle":"/b","rootfs":"/r","created":"","annotations":{{}},
                "cgroups":[],"chrooted":false,"users":null,"poststart":[],"poststop":[]}}"#
            )
        };
        let whole = record("a");
        for (id, text) in [
            ("a", whole.as_str()),
            ("cut", &whole[..40]),
            ("empty", ""),
            ("other", "[]"),
            ("z", &record("z")),
        ] {
            fs::create_dir(root.path().join(id)).unwrap();
            fs::write(root.path().join(id).join("state.json"), text).unwrap();
        }
        fs::create_dir_all(root.path().join("odd/state.json")).unwrap();
        let runtime = Runtime::new(root.path().to_owned(), "/shim".into());
        assert_eq!(listed(&runtime), (vec!["a".into(), "z".into()], 4));
    }
}
