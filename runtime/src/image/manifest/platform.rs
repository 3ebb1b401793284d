//! Platforms, and which of an index's images runs on one.

use serde::Deserialize;

use super::{DOCKER_LIST, DOCKER_MANIFEST, Descriptor, OCI_INDEX, OCI_MANIFEST};

/// What an image runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// GOARCH.
    #[serde(default)]
    pub architecture: String,
    /// GOOS.
    #[serde(default)]
    pub os: String,
    /// CPU variant: v7, v8.
    #[serde(default)]
    pub variant: String,
}

impl Platform {
    /// This machine's.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "x86" => ("386", ""),
            "aarch64" => ("arm64", "v8"),
            "arm" => ("arm", "v7"),
            "powerpc64" => ("ppc64le", ""),
            other => (other, ""),
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: variant.to_owned(),
        }
    }

    /// How well an image for `other` runs here; higher is better, none is not at all.
    fn rank(&self, other: &Platform) -> Option<u32> {
        if other.os != self.os || other.architecture != self.architecture {
            return None;
        }
        let number = |variant: &str| {
            variant
                .strip_prefix('v')
                .and_then(|n| n.parse::<u32>().ok())
        };
        match (number(&self.variant), number(&other.variant)) {
            (_, None) => Some(0),
            (Some(ours), Some(theirs)) if theirs <= ours => Some(theirs),
            (None, Some(1)) => Some(1),
            _ => None,
        }
    }
}

/// Chooses from an index: the best for the platform, else one that names no platform at all.
/// Attestations and other attachments name `unknown` and are no choice.
pub fn choose<'a>(index: &'a [Descriptor], host: &Platform) -> Option<&'a Descriptor> {
    let usable = |entry: &&Descriptor| {
        !entry.annotations.contains_key("vnd.docker.reference.type")
            && [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST]
                .contains(&entry.media_type.as_str())
    };
    let ranked = |entry: &'a Descriptor| Some((host.rank(entry.platform.as_ref()?)?, entry));
    let mut best: Option<(u32, &Descriptor)> = None;
    for (rank, entry) in index.iter().filter(usable).filter_map(ranked) {
        if best.is_none_or(|(so_far, _)| rank > so_far) {
            best = Some((rank, entry));
        }
    }
    best.map(|(_, entry)| entry).or_else(|| {
        index
            .iter()
            .filter(usable)
            .find(|entry| entry.platform.is_none())
    })
}
