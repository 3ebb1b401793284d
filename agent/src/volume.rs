//! Pods' volumes on the node.
//!
//! ```text
//! ROOT/pods/UID/volumes/kubernetes.io~empty-dir/NAME      also ~configmap, ~secret, ~downward-api, ~projected, ~image
//! ```
//! First everything that a volume needs is fetched ([`gather`]), then files are written, away from the async threads
//! ([`set_up`]). Containers write in these directories, so nothing here follows a link of theirs.

mod atomic;
pub mod contents;
mod fs;
mod gather;
mod host_path;
mod payload;
mod set_up;
pub mod sub_path;

use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::Pod;

use crate::env::field::NodeFacts;
use crate::sinks::{MountedVolumes, Objects, VolumeError, Volumes};

/// Volumes below one root directory.
#[derive(Clone)]
pub struct PodVolumes {
    root: PathBuf,
    objects: Arc<dyn Objects>,
    facts: Arc<NodeFacts>,
}

impl std::fmt::Debug for PodVolumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodVolumes")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl PodVolumes {
    /// `facts` answer the downward API's questions about resources.
    pub fn new(root: &Path, objects: Arc<dyn Objects>, facts: NodeFacts) -> Self {
        Self {
            root: root.to_owned(),
            objects,
            facts: Arc::new(facts),
        }
    }

    /// Directory of all pods.
    fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }
}

/// Where the image of a volume is mounted, in the pod's directory; none when its name is no name of a directory. Images
/// are pulled and mounted when a container starts, not here.
pub fn image_path(pod_dir: &Path, volume: &str) -> Option<PathBuf> {
    let images = pod_dir.join("volumes").join(gather::IMAGE);
    is_plain(volume).then(|| images.join(volume))
}

/// Whether the volume at this path holds the contents of objects or of an image. Its plugin's directory says so; containers get
/// such a volume read-only, whatever they ask for.
pub fn holds_objects(path: &Path) -> bool {
    is_pods_own(path) && plugin(path) != Some(gather::EMPTY_DIR)
        || plugin(path) == Some(gather::IMAGE)
}

/// Whether the volume at this path was made for its pod, and nobody else has it.
pub fn is_pods_own(path: &Path) -> bool {
    matches!(
        plugin(path),
        Some(
            gather::EMPTY_DIR
                | gather::CONFIG_MAP
                | gather::SECRET
                | gather::DOWNWARD_API
                | gather::PROJECTED
        )
    )
}

/// The directory of a volume's plugin.
fn plugin(path: &Path) -> Option<&str> {
    path.parent()?.file_name()?.to_str()
}

/// A name that is one plain component of a path.
fn is_plain(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && name.bytes().all(fits)
}

fn error(volume: &str, message: impl Into<String>) -> VolumeError {
    VolumeError {
        volume: volume.to_owned(),
        message: message.into(),
    }
}

/// The task that writes cannot panic; if it is cancelled, the agent ends.
fn cancelled(_: tokio::task::JoinError) -> Vec<VolumeError> {
    vec![error("", "the agent is ending")]
}

#[async_trait]
impl Volumes for PodVolumes {
    async fn mount(&self, pod: &Arc<Pod>) -> Result<MountedVolumes, Vec<VolumeError>> {
        let volumes = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.volumes.as_deref())
            .unwrap_or_default();
        if volumes.is_empty() {
            return Ok(MountedVolumes::new());
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if !is_plain(&uid) {
            return Err(vec![error(
                "",
                format!("the pod's uid {uid:?} is no name of a directory"),
            )]);
        }
        let ours = volumes.iter().filter(|volume| volume.image.is_none());
        let gathered = ours.map(|volume| async {
            let plan = gather::plan(pod, volume, self.objects.as_ref(), &self.facts).await;
            (volume.name.clone(), plan)
        });
        let gathered = join_all(gathered).await;
        let (pods, group) = (self.pods(), payload::fs_group(pod));
        let done = tokio::task::spawn_blocking(move || set_up::all(&pods, &uid, gathered, group));
        done.await.map_err(cancelled)?
    }

    async fn unmount(&self, uid: &PodUid) -> Result<(), Vec<VolumeError>> {
        if !is_plain(uid.as_str()) {
            return Ok(());
        }
        let (pods, uid) = (self.pods(), uid.0.clone());
        tokio::task::spawn_blocking(move || tear_down(&pods, &uid))
            .await
            .map_err(cancelled)?
    }

    async fn on_disk(&self) -> Vec<PodUid> {
        let pods = self.pods();
        let listed = tokio::task::spawn_blocking(move || {
            let entries = std::fs::read_dir(pods).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| is_plain(name)).map(PodUid).collect()
        });
        listed.await.unwrap_or_default()
    }
}

/// Removes a pod's directory, after its volumes that are mounts of their own.
fn tear_down(pods: &Path, uid: &str) -> Result<(), Vec<VolumeError>> {
    let Ok(parent) = fs::open_trusted(pods) else {
        return Ok(());
    };
    let mut errors = set_up::unmount_all(&pods.join(uid));
    let name = CString::new(uid).map_err(|_| vec![error("", "the pod's uid holds a zero byte")])?;
    if let Err(failures) = fs::remove_tree(parent.as_fd(), &name) {
        errors.extend(failures.iter().map(|failure| error("", failure.story())));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

#[cfg(test)]
#[path = "volume/tests.rs"]
mod tests;
