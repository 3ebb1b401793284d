//! What sandboxes and containers carry so that a new agent can tell what they are.
//!
//! The keys are those that node tools already read; those that begin with `hanok.` are ours.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::spec;

/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: hash of what makes a running container restart when it changes.
pub const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: how often the container has been restarted.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: host path of the file behind the container's termination message.
pub const TERMINATION_MESSAGE_FILE: &str = "hanok.termination-message-file";
/// Annotation: path in the container of its termination message.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the pod's grace period in seconds.
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Annotation: see [`super::back_off::Step`].
pub const BACK_OFF: &str = "hanok.back-off";

/// Annotation: the memory, in bytes, that the container was made with asking for; only where a change of it restarts.
pub const MEMORY_REQUEST: &str = "hanok.memory-request";

/// Labels of a pod's sandbox: the pod's own and who it is.
pub fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity(pod));
    labels
}

/// Labels of a container.
pub fn container_labels(pod: &Pod, name: &str) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<_, _> = identity(pod).into_iter().collect();
    labels.insert(CONTAINER_NAME.to_owned(), name.to_owned());
    labels
}

/// Who the pod is.
fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), spec::name(pod).to_owned()),
        (POD_NAMESPACE.to_owned(), spec::namespace(pod).to_owned()),
        (POD_UID.to_owned(), spec::uid(pod).0),
    ]
}

/// Hash of name and image: a running container is replaced when it differs from its record's.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    format!(
        "{:016x}",
        fnv1a(&[container.name.as_bytes(), image.as_bytes()])
    )
}

/// FNV-1a over the parts, each closed by a byte that no text has. It must stay the same over versions of the
/// agent and of Rust, or an upgrade would restart every container.
pub(crate) fn fnv1a(parts: &[&[u8]]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = parts
        .iter()
        .flat_map(|part| part.iter().copied().chain([0xff]));
    bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_name_and_image_alone_and_never_changes() {
        let container = |name: &str, image: &str| Container {
            name: name.into(),
            image: Some(image.into()),
            ..Container::default()
        };
        let base = container("web", "nginx:1");
        let with_env = Container {
            args: Some(vec!["x".into()]),
            ..base.clone()
        };
        assert_eq!(container_hash(&base), "74c30486e109b328");
        assert_eq!(container_hash(&base), container_hash(&with_env));
        assert_ne!(
            container_hash(&base),
            container_hash(&container("web", "nginx:2"))
        );
        assert_ne!(
            container_hash(&container("ab", "c")),
            container_hash(&container("a", "bc"))
        );
    }
}
