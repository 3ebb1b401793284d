//! Static pods from a directory, or from one file.
//!
//! Every file whose name does not begin with a dot is one pod's manifest; of two with a pod of the same name the last
//! counts. A file that cannot be read as one is told of once, and does not end the pod that it described before, as the next
//! look of a kubelet does: whoever is still writing it will be done in a moment.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::manifest::{self, Origin};
use super::static_pods::{Gate, StaticPods};
use crate::pod::spec;
use crate::server::watch::{Hub, Watch};

/// Largest manifest.
const MAX_SIZE: u64 = 10 << 20;
/// Files are written in several steps; they are read when this time has passed without another one.
const SETTLE: Duration = Duration::from_millis(20);
/// They are read after this time at the latest.
const SETTLE_MOST: Duration = Duration::from_secs(1);

/// Where manifests are.
#[derive(Debug, Clone)]
pub struct FileSource {
    /// A directory or a file; it may not exist (yet).
    pub path: PathBuf,
    /// Name of the node.
    pub node_name: String,
    /// How often it is read when nobody has told of a change.
    pub every: Duration,
}

/// Tells of the manifests' pods, now and whenever they change, until nobody listens any more.
pub async fn follow(source: FileSource, mut pods: StaticPods, gate: Gate) {
    let hub = Hub::new();
    let mut gate = Some(gate);
    let mut reader = Reader::new(source.clone());
    loop {
        // Before the look, so that nothing between is lost.
        let watch = watch(&hub, &source.path);
        let read = tokio::task::spawn_blocking(move || {
            let found = reader.read();
            (reader, found)
        });
        let Ok((kept, found)) = read.await else {
            return;
        };
        reader = kept;
        if let Some(found) = found
            && pods.set(found).await.is_err()
        {
            return;
        }
        if let Some(gate) = gate.take()
            && gate.pass().await.is_err()
        {
            return;
        }
        tokio::select! {
            () = changed(watch) => {}
            () = tokio::time::sleep(source.every) => {}
        }
    }
}

/// Watches the directory, or the one in which the file or the directory is or will be.
fn watch(hub: &Hub, path: &Path) -> Option<Watch> {
    let directories = [Some(path), path.parent()];
    directories
        .into_iter()
        .flatten()
        .find_map(|path| hub.watch(path).ok())
}

/// Returns when something has changed and no more is written for a moment.
async fn changed(watch: Option<Watch>) {
    let Some(mut watch) = watch else {
        return std::future::pending().await;
    };
    watch.changed().await;
    let settle = async { while tokio::time::timeout(SETTLE, watch.changed()).await.is_ok() {} };
    // Whoever writes without an end has written something by now.
    let _ = tokio::time::timeout(SETTLE_MOST, settle).await;
}

/// Reads manifests, and remembers what they said last.
#[derive(Debug)]
struct Reader {
    source: FileSource,
    /// The pod of each file.
    pods: BTreeMap<PathBuf, Pod>,
    /// What has been told about each file.
    complaints: BTreeMap<PathBuf, String>,
}

impl Reader {
    fn new(source: FileSource) -> Self {
        Self {
            source,
            pods: BTreeMap::new(),
            complaints: BTreeMap::new(),
        }
    }

    /// The pods as they are now; none when nothing can be said of them.
    fn read(&mut self) -> Option<Vec<Pod>> {
        let path = self.source.path.clone();
        let mut complaints = BTreeMap::new();
        let files = match files(&path) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                complaints.insert(path, error.to_string());
                self.complain(complaints);
                return None;
            }
        };
        let mut found = BTreeMap::new();
        for file in files {
            match self.pod(&file) {
                Ok(Some(pod)) => {
                    found.insert(file, pod);
                }
                Ok(None) => {}
                Err(why) => {
                    complaints.insert(file.clone(), why);
                    if let Some(pod) = self.pods.remove(&file) {
                        found.insert(file, pod);
                    }
                }
            }
        }
        let pods = without_namesakes(&found, &mut complaints);
        self.complain(complaints);
        self.pods = found;
        Some(pods)
    }

    /// A file's pod; none for a file that has just gone.
    fn pod(&self, file: &Path) -> Result<Option<Pod>, String> {
        let text = match read_text(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let origin = file.display().to_string();
        let found = manifest::pods(&text, &self.source.node_name, Origin::File(&origin));
        let mut found = found.map_err(|error| error.to_string())?;
        Ok(found.pop())
    }

    /// Tells what has not been told before.
    fn complain(&mut self, complaints: BTreeMap<PathBuf, String>) {
        for (file, why) in &complaints {
            if self.complaints.get(file) != Some(why) {
                tracing::error!(file = %file.display(), "cannot use the manifest of a static pod: {why}");
            }
        }
        self.complaints = complaints;
    }
}

/// The manifests of a directory in the order of their names, or the one file.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read_text(file: &Path) -> io::Result<String> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    // Opening a pipe would wait for its other end.
    if !std::fs::metadata(file)?.is_file() {
        return Err(wrong("not a regular file"));
    }
    let mut text = String::new();
    let read = std::fs::File::open(file)?
        .take(MAX_SIZE + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_SIZE {
        return Err(wrong("larger than 10 MiB"));
    }
    Ok(text)
}

/// One pod for each name: the last file's.
fn without_namesakes(
    found: &BTreeMap<PathBuf, Pod>,
    complaints: &mut BTreeMap<PathBuf, String>,
) -> Vec<Pod> {
    let mut named: BTreeMap<(&str, &str), (&Path, &Pod)> = BTreeMap::new();
    for (file, pod) in found {
        let name = (spec::namespace(pod), spec::name(pod));
        if let Some((earlier, _)) = named.insert(name, (file, pod)) {
            let (namespace, name) = name;
            let why = format!("pod {namespace}/{name} is in {}, too", file.display());
            complaints.entry(earlier.to_owned()).or_insert(why);
        }
    }
    named.values().map(|(_, pod)| Pod::clone(pod)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::PodUpdate;
    use tokio::sync::mpsc;

    fn manifest(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: c, image: '{image}'}}\n"
        )
    }

    fn source(path: &Path) -> FileSource {
        FileSource {
            path: path.to_owned(),
            node_name: "n1".into(),
            every: Duration::from_secs(3600),
        }
    }

    fn names(reader: &mut Reader) -> Vec<String> {
        let pods = reader.read().expect("a directory");
        pods.iter().map(|pod| spec::name(pod).to_owned()).collect()
    }

    #[test]
    fn a_broken_file_is_told_once_and_others_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.yaml", &manifest("a", "i"));
        write(
            "b.json",
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
        );
        write("c.yaml", "kind: [");
        write(".hidden.yaml", &manifest("hidden", "i"));
        write("same.yaml", &manifest("a", "other"));
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let mut reader = Reader::new(source(dir.path()));
        let pods = reader.read().expect("a directory");
        let of = |pod: &Pod| {
            let image = spec::app_containers(pod)[0].image.clone();
            (spec::name(pod).to_owned(), image.unwrap_or_default())
        };
        let read: Vec<_> = pods.iter().map(of).collect();
        let want = [("a-n1", "other"), ("b-n1", "i")];
        assert_eq!(read, want.map(|(name, image)| (name.into(), image.into())));
        let told: Vec<_> = reader
            .complaints
            .iter()
            .map(|(file, why)| (file.file_name().unwrap().to_str().unwrap(), why.as_str()))
            .collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[0].0, "a.yaml");
        let same = dir.path().join("same.yaml");
        let why = format!("pod default/a-n1 is in {}, too", same.display());
        assert_eq!(told[0].1, why);
        assert_eq!(told[1].0, "c.yaml");
        assert_eq!(told[2], ("sub", "not a regular file"));
    }

    #[test]
    fn a_file_that_breaks_keeps_its_pod_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let mut reader = Reader::new(source(dir.path()));
        assert!(names(&mut reader).is_empty());
        std::fs::write(&file, manifest("a", "i")).unwrap();
        assert_eq!(names(&mut reader), ["a-n1"]);
        std::fs::write(&file, &manifest("a", "i")[..60]).unwrap();
        assert_eq!(names(&mut reader), ["a-n1"]);
        assert_eq!(reader.complaints.len(), 1);
        std::fs::remove_file(&file).unwrap();
        assert!(names(&mut reader).is_empty());
        assert!(reader.complaints.is_empty());
        std::fs::remove_dir(dir.path()).unwrap();
        assert!(names(&mut reader).is_empty());
    }

    #[test]
    fn one_file_may_be_named_instead_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, manifest("a", "i")).unwrap();
        assert_eq!(names(&mut Reader::new(source(&file))), ["a-n1"]);
    }

    #[tokio::test]
    async fn changes_are_noticed_also_in_a_directory_that_does_not_exist_yet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifests");
        let (updates, mut received) = mpsc::channel(8);
        let pods = StaticPods::new("file", updates.clone(), None);
        let gate = Gate::new(1, updates);
        let task = tokio::spawn(follow(source(&path), pods, gate));
        let mut next = async || {
            let update = tokio::time::timeout(Duration::from_secs(20), received.recv());
            match update.await.expect("in time").expect("a source that lives") {
                PodUpdate::Apply(pod) => {
                    let image = spec::app_containers(&pod)[0].image.clone();
                    image.unwrap_or_default()
                }
                PodUpdate::Gone(_) => "gone".to_owned(),
                PodUpdate::Synced => "synced".to_owned(),
            }
        };
        assert_eq!(next().await, "synced");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a.yaml"), manifest("a", "i:1")).unwrap();
        assert_eq!(next().await, "i:1");
        std::fs::write(path.join(".tmp"), manifest("a", "i:2")).unwrap();
        std::fs::rename(path.join(".tmp"), path.join("a.yaml")).unwrap();
        assert_eq!(next().await, "gone");
        assert_eq!(next().await, "i:2");
        std::fs::remove_file(path.join("a.yaml")).unwrap();
        assert_eq!(next().await, "gone");
        task.abort();
    }
}
