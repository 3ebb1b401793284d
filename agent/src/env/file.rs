//! Variables in files of volumes (`valueFrom.fileKeyRef`), which mostly an init container has written.
//!
//! ```text
//! NAME='value'      # a comment may follow, and the value may have several lines
//! ```
//! Nothing is expanded, and a value has no escapes. The rules are the kubelet's: <https://kep.k8s.io/3721>.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, FileKeySelector};

use super::EnvError;
use crate::sinks::MountedVolumes;
use crate::volume::contents;

/// Largest file, bytes: as much as an object of the API could hold.
const LARGEST: u64 = 1 << 20;
/// Most that all files of a container may have together, bytes: whoever writes them also says how often they are read.
const MOST_READ: usize = 64 << 20;
/// Most that the values of all of a container's variables may have together, bytes.
const MOST_KEPT: usize = 1 << 20;

/// What was found, by volume and path.
pub type Files = BTreeMap<(String, String), Found>;

/// What a file says of the variables that somebody wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// By name.
    pub values: BTreeMap<String, String>,
    /// Why it was read no further than to these.
    pub wrong: Option<String>,
    /// The file on the node; empty where there is none.
    pub file: PathBuf,
}

/// What a container wants of a file: names, and how many of its variables refer to each.
#[derive(Debug)]
struct Wanted {
    volume: PathBuf,
    names: BTreeMap<String, usize>,
}

/// Reads what the container's variables want of files, each file once.
pub(super) async fn read_all(
    container: &Container,
    volumes: &MountedVolumes,
) -> Result<Files, EnvError> {
    let wanted = wanted(container, volumes)?;
    if wanted.is_empty() {
        return Ok(Files::new());
    }
    tokio::task::spawn_blocking(move || look(wanted)).await?
}

/// What the container wants, by volume and path.
fn wanted(
    container: &Container,
    volumes: &MountedVolumes,
) -> Result<BTreeMap<(String, String), Wanted>, EnvError> {
    let mut all = BTreeMap::new();
    let sources = container.env.iter().flatten();
    for source in sources.filter_map(|var| var.value_from.as_ref()?.file_key_ref.as_ref()) {
        let name = &source.volume_name;
        let volume = volumes.get(name);
        let volume = volume.ok_or_else(|| EnvError::Volume(name.clone()))?;
        let file = all.entry((name.clone(), source.path.clone()));
        let file = file.or_insert_with(|| Wanted {
            volume: volume.clone(),
            names: BTreeMap::new(),
        });
        *file.names.entry(source.key.clone()).or_default() += 1;
    }
    Ok(all)
}

/// Looks into every file, and keeps no more of it than was wanted.
fn look(wanted: BTreeMap<(String, String), Wanted>) -> Result<Files, EnvError> {
    let (mut bytes_read, mut bytes_kept) = (0, 0);
    let mut files = Files::new();
    for (key, file) in wanted {
        let found = match read(&file.volume, &key.1) {
            Ok(Some(text)) => {
                add(&mut bytes_read, text.len(), "the files", MOST_READ)?;
                Found {
                    file: file.volume.join(&key.1),
                    ..pick(&text, &file.names)
                }
            }
            Ok(None) => Found::default(),
            Err(why) => Found {
                wrong: Some(why),
                ..Found::default()
            },
        };
        for (name, value) in &found.values {
            let times = file.names.get(name).copied().unwrap_or_default();
            let bytes = value.len().saturating_mul(times);
            add(&mut bytes_kept, bytes, "the values", MOST_KEPT)?;
        }
        files.insert(key, found);
    }
    Ok(files)
}

/// Adds up; more than the most is an error.
fn add(sum: &mut usize, bytes: usize, what: &'static str, most: usize) -> Result<(), EnvError> {
    *sum = sum.saturating_add(bytes);
    match *sum > most {
        true => Err(EnvError::TooMuch { what, most }),
        false => Ok(()),
    }
}

/// Reads a file of the volume at `volume`, if it exists. The error says why it cannot be read.
fn read(volume: &Path, path: &str) -> Result<Option<String>, String> {
    match contents::read(volume, Path::new(path), LARGEST) {
        Ok(bytes) => Ok(Some(super::text(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The first variable of each of these names. What follows the last of them is not looked at.
fn pick(text: &str, names: &BTreeMap<String, usize>) -> Found {
    let mut found = Found::default();
    let mut lines = text.lines().zip(1..);
    while found.values.len() < names.len() {
        match next(&mut lines) {
            Ok(Some((name, value))) => {
                if names.contains_key(name) && !found.values.contains_key(name) {
                    found.values.insert(name.to_owned(), value);
                }
            }
            Ok(None) => break,
            Err(wrong) => {
                found.wrong = Some(wrong);
                break;
            }
        }
    }
    found
}

/// The variable that comes next in these numbered lines.
fn next<'t>(
    lines: &mut impl Iterator<Item = (&'t str, usize)>,
) -> Result<Option<(&'t str, String)>, String> {
    let blank_or_comment = |line: &str| line.is_empty() || line.starts_with('#');
    let mut trimmed = lines.map(|(line, number)| (line.trim_start_matches(BLANK), number));
    let Some((line, number)) = trimmed.find(|(line, _)| !blank_or_comment(line)) else {
        return Ok(None);
    };
    let wrong = |what: &str| Err(format!("line {number}: {what}"));
    let Some((name, value)) = line.split_once('=') else {
        return wrong("there is no \"=\"");
    };
    if name.is_empty() || name.ends_with(BLANK) {
        return wrong("a name is expected right before \"=\"");
    }
    if value.starts_with(BLANK) {
        // As in a shell, it is empty then.
        return Ok(Some((name, String::new())));
    }
    let Some(mut rest) = value.strip_prefix('\'') else {
        return wrong("a value in single quotes is expected");
    };
    let mut whole = String::new();
    let after = loop {
        if let Some((end, after)) = rest.split_once('\'') {
            whole.push_str(end);
            break after.trim_start_matches(BLANK);
        }
        whole.push_str(rest);
        whole.push('\n');
        match lines.next() {
            Some((next, _)) => rest = next,
            None => return wrong("the quote is not closed"),
        }
    };
    if !blank_or_comment(after) {
        return wrong("only a comment may follow the value");
    }
    Ok(Some((name, whole)))
}

const BLANK: [char; 2] = [' ', '\t'];

/// The variable that this refers to. As the kubelet has it, an empty one is not there.
pub(super) fn variable(
    files: &Files,
    source: &FileKeySelector,
) -> Result<Option<String>, EnvError> {
    let (volume, path) = (source.volume_name.clone(), source.path.clone());
    let key = (volume, path);
    let none = Found::default();
    let found = files.get(&key).unwrap_or(&none);
    let why = match (found.values.get(&source.key), &found.wrong) {
        (Some(value), _) if !value.is_empty() => return Ok(Some(value.clone())),
        (None, Some(wrong)) => wrong.clone(),
        _ if source.optional.unwrap_or(false) => return Ok(None),
        _ if found.file.as_os_str().is_empty() => "there is no such file".to_owned(),
        _ => {
            let (key, file) = (source.key.clone(), found.file.clone());
            return Err(EnvError::FileKey { key, file });
        }
    };
    let (volume, path) = key;
    Err(EnvError::File { volume, path, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str, name: &str) -> Result<Option<String>, String> {
        let mut found = pick(text, &[(name.to_owned(), 1)].into());
        match found.wrong {
            Some(wrong) => Err(wrong),
            None => Ok(found.values.remove(name)),
        }
    }

    /// Reads for a container with these variables: a path and a key each.
    async fn read_for(
        volume: &Path,
        variables: impl Iterator<Item = (String, &str)>,
    ) -> Result<Files, EnvError> {
        let env = variables.map(|(path, key)| {
            let source = json!({"volumeName": "v", "path": path, "key": key});
            json!({"name": "X", "valueFrom": {"fileKeyRef": source}})
        });
        let env: Vec<_> = env.collect();
        let container = serde_json::from_value(json!({"name": "c", "env": env})).unwrap();
        read_all(&container, &[("v".to_owned(), volume.to_owned())].into()).await
    }

    #[test]
    fn what_is_wrong_counts_for_what_was_not_found_before_it() {
        let names = ["A", "C", "Z"].map(|name| (name.to_owned(), 1)).into();
        let text = "A='1'\nB='2'\nC='3'\nA='4'\nD\nZ='5'\n";
        let values = [("A", "1"), ("C", "3")].map(|(name, value)| (name.into(), value.into()));
        let found = Found {
            values: values.into(),
            wrong: Some("line 5: there is no \"=\"".to_owned()),
            file: PathBuf::new(),
        };
        assert_eq!(pick(text, &names), found);
    }

    #[tokio::test]
    async fn values_have_a_mebibyte_together_however_they_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let half = MOST_KEPT / 2;
        let text = format!("SMALL='x'\nLARGE='{}'\n", "x".repeat(half));
        std::fs::write(dir.path().join("env"), text).unwrap();
        let env = |times: usize| (0..times).map(|i| (format!("{}env", "./".repeat(i)), "LARGE"));
        let files = read_for(dir.path(), env(2)).await.unwrap();
        assert_eq!(files.len(), 2);
        let same = || (0..3).map(|_| ("env".to_owned(), "LARGE"));
        for error in [
            read_for(dir.path(), env(3)).await.unwrap_err(),
            read_for(dir.path(), same()).await.unwrap_err(),
        ] {
            let want = "the values of all fileKeyRefs have more than 1048576 bytes together";
            assert_eq!(error.to_string(), want);
        }
        let many = (0..200).map(|i| (format!("{}env", "./".repeat(i)), "NONE"));
        let error = read_for(dir.path(), many).await.unwrap_err().to_string();
        assert!(error.starts_with("the files of all"), "{error}");
    }

    #[tokio::test]
    async fn a_file_of_many_variables_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..10_000).map(|i| format!("V{i}='{i}'\n")).collect();
        std::fs::write(dir.path().join("env"), text).unwrap();
        let names: Vec<_> = (0..10_000).map(|i| format!("V{i}")).collect();
        let variables = names.iter().map(|name| ("env".to_owned(), name.as_str()));
        let files = read_for(dir.path(), variables).await.unwrap();
        assert_eq!(files.len(), 1);
        let found = &files[&("v".to_owned(), "env".to_owned())];
        assert_eq!((found.values.len(), &found.wrong), (10_000, &None));
        assert_eq!(found.values["V9999"], "9999");
    }

    #[tokio::test]
    async fn files_are_read_from_the_volumes_that_the_pod_has() {
        let source = json!({"volumeName": "w", "path": "env", "key": "A"});
        let env = json!([{"name": "X", "valueFrom": {"fileKeyRef": source}}]);
        let container = serde_json::from_value(json!({"name": "c", "env": env})).unwrap();
        let volumes = [("v".to_owned(), PathBuf::from("/nowhere"))].into();
        let error = read_all(&container, &volumes).await.unwrap_err();
        let want = "cannot find the volume \"w\" referenced by FileKeyRef";
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn the_first_of_its_name_counts_and_nothing_is_expanded() {
        let text = "# a comment\n\n  A='1'\nB='$A \"x\" \\n'\t# why\nA='2'\r\nLONG='one\n two\n'\nEMPTY=\nGAP= 'x'\n";
        let table = [
            ("A", Ok(Some("1"))),
            ("B", Ok(Some("$A \"x\" \\n"))),
            ("a", Err("line 9: a value in single quotes is expected")),
        ];
        for (name, want) in table {
            let got = value(text, name);
            let want = want.map(|value| value.map(str::to_owned));
            assert_eq!(got, want.map_err(str::to_owned), "{name}");
        }
        let text = text.replace("EMPTY=\n", "EMPTY=''\n");
        for (name, want) in [
            ("LONG", Some("one\n two\n")),
            ("EMPTY", Some("")),
            ("GAP", Some("")),
            ("NONE", None),
        ] {
            assert_eq!(value(&text, name), Ok(want.map(str::to_owned)), "{name}");
        }
    }

    #[test]
    fn what_is_no_variable_is_told_by_its_line() {
        let table = [
            ("A", "line 1: there is no"),
            ("='x'", "line 1: a name"),
            ("\nA ='x'", "line 2: a name"),
            ("A=x", "line 1: a value in single quotes"),
            ("A=\"x\"", "line 1: a value in single quotes"),
            ("A='x' y", "line 1: only a comment"),
            ("B='x'\nA='x\ny", "line 2: the quote"),
        ];
        for (text, want) in table {
            let error = value(text, "A").expect_err(text);
            assert!(error.starts_with(want), "{text}: {error}");
        }
    }
}
