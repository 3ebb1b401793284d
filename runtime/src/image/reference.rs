//! Image references: `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`, and their one normal form.
//!
//! A short name means docker.io, a name without a slash there means `library/`, no tag means `latest`, and
//! where there is a digest it decides and the tag is forgotten. Two spellings of one image give one text.

use std::fmt;
use std::str::FromStr;

use crate::content::Digest;

/// Longest registry and repository together (distribution specification).
const MAX_NAME: usize = 255;
/// Longest tag.
const MAX_TAG: usize = 128;
/// The registry of names that name none.
const HUB: &str = "docker.io";

/// A reference in its normal form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    target: Target,
}

/// What a reference points to within its repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Target {
    Tag(String),
    Digest(Digest),
}

/// Text that is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    /// It has upper-case letters where they are not allowed.
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    /// It is too long.
    #[error("repository name must not be more than {MAX_NAME} characters")]
    TooLong,
    /// Its digest is not one that is supported.
    #[error("invalid digest: want sha256: and 64 lower-case hexadecimal digits")]
    Digest,
    /// It is 64 hexadecimal digits, which would be an image id.
    #[error("a name cannot be 64 hexadecimal digits")]
    LooksLikeId,
    /// Anything else.
    #[error("invalid reference format")]
    Format,
}

impl Reference {
    /// Host and port of the registry as named: `docker.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository: `library/busybox`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Registry and repository: `docker.io/library/busybox`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The tag, or none when a digest decides.
    pub fn tag(&self) -> Option<&str> {
        match &self.target {
            Target::Tag(tag) => Some(tag),
            Target::Digest(_) => None,
        }
    }

    /// The digest, if that decides.
    pub fn digest(&self) -> Option<&Digest> {
        match &self.target {
            Target::Tag(_) => None,
            Target::Digest(digest) => Some(digest),
        }
    }

    /// Tag or digest as the registry's API wants it.
    pub fn identifier(&self) -> String {
        match &self.target {
            Target::Tag(tag) => tag.clone(),
            Target::Digest(digest) => digest.to_string(),
        }
    }

    /// The same repository, by digest.
    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self {
            target: Target::Digest(digest),
            ..self.clone()
        }
    }

    /// The same repository, by tag; none when the tag is not one.
    pub fn with_tag(&self, tag: &str) -> Option<Self> {
        is_tag(tag).then(|| Self {
            target: Target::Tag(tag.to_owned()),
            ..self.clone()
        })
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (
                rest,
                Some(digest.parse().map_err(|_| InvalidReference::Digest)?),
            ),
            None => (text, None),
        };
        let name_start = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[name_start..].find(':') {
            Some(colon) => {
                let colon = name_start + colon;
                (&rest[..colon], Some(&rest[colon + 1..]))
            }
            None => (rest, None),
        };
        let (registry, repository) = split_name(name)?;
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(InvalidReference::Format);
        }
        let target = match digest {
            Some(digest) => Target::Digest(digest),
            None => Target::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self {
            registry,
            repository,
            target,
        })
    }
}

fn split_name(name: &str) -> Result<(String, String), InvalidReference> {
    if Digest::from_hex(name).is_ok() {
        return Err(InvalidReference::LooksLikeId);
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest),
        _ => (HUB, name),
    };
    let registry = if registry == "index.docker.io" {
        HUB
    } else {
        registry
    };
    let repository = match registry == HUB && !path.contains('/') {
        true => format!("library/{path}"),
        false => path.to_owned(),
    };
    if !path.split('/').all(is_component) {
        let remote = repository.split(':').next().unwrap_or_default();
        return Err(match remote.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => InvalidReference::Uppercase(remote.to_owned()),
            false => InvalidReference::Format,
        });
    }
    if !is_host_and_port(registry) {
        return Err(InvalidReference::Format);
    }
    if registry.len() + 1 + repository.len() > MAX_NAME {
        return Err(InvalidReference::TooLong);
    }
    Ok((registry.to_owned(), repository))
}

/// Whether the first component is a registry rather than a user of the hub.
fn is_registry(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_host_and_port(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err() || port.starts_with('+')) {
        return false;
    }
    if let Some(address) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    host.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    plain(*first)
        && plain(*last)
        && bytes.split(|byte| plain(*byte)).all(|joint| {
            matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|b| *b == b'-')
        })
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let Some(first) = text.bytes().next() else {
        return false;
    };
    text.len() <= MAX_TAG
        && word(first)
        && text
            .bytes()
            .all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            registry,
            repository,
            target,
        } = self;
        match target {
            Target::Tag(tag) => write!(f, "{registry}/{repository}:{tag}"),
            Target::Digest(digest) => write!(f, "{registry}/{repository}@{digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn every_spelling_of_an_image_has_one_normal_form() {
        for spelling in [
            "busybox",
            "busybox:latest",
            "library/busybox",
            "docker.io/busybox",
            "docker.io/library/busybox:latest",
            "index.docker.io/library/busybox",
        ] {
            let reference: Reference = spelling.parse().unwrap();
            assert_eq!(
                reference.to_string(),
                "docker.io/library/busybox:latest",
                "{spelling}"
            );
        }
        for (spelling, normal) in [
            ("localhost/a", "localhost/a:latest"),
            ("localhost:5000/a/b:1.2", "localhost:5000/a/b:1.2"),
            ("10.0.0.1:5000/a", "10.0.0.1:5000/a:latest"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("user/app__x-y.z:V_1", "docker.io/user/app__x-y.z:V_1"),
        ] {
            assert_eq!(spelling.parse::<Reference>().unwrap().to_string(), normal);
        }
    }

    #[test]
    fn a_digest_decides_over_a_tag() {
        for spelling in ["busybox", "busybox:1", "busybox:WRONG"] {
            let reference: Reference = format!("{spelling}@sha256:{HEX}").parse().unwrap();
            assert_eq!(
                reference.to_string(),
                format!("docker.io/library/busybox@sha256:{HEX}")
            );
            assert_eq!(reference.tag(), None);
        }
    }

    #[test]
    fn what_is_not_a_reference_is_refused() {
        assert_eq!(
            "Busybox".parse::<Reference>(),
            Err(InvalidReference::Uppercase("library/Busybox".to_owned()))
        );
        assert_eq!(HEX.parse::<Reference>(), Err(InvalidReference::LooksLikeId));
        let long = format!("{}/b", "a".repeat(255));
        assert_eq!(long.parse::<Reference>(), Err(InvalidReference::TooLong));
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "a:",
            "a:b:c",
            "a@",
            "a@sha256:12",
            "a b",
            "-a",
            "a-",
            "a..b",
            "a___b",
            "../a",
            "a/../b",
            "host.io:port/a",
            "host.io:99999/a",
            "a\n",
            "[::1/a",
            "a:ta/g",
            "a@sha512:00",
            "http://a.b/c",
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_the_normal_form_is_stable(text in "[a-zA-Z0-9:/@._\\[\\]-]{0,60}|\\PC{0,40}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let normal = reference.to_string();
                prop_assert_eq!(normal.parse::<Reference>().unwrap(), reference);
            }
        }
    }
}
