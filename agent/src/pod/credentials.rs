//! Registry credentials from a pod's pull secrets. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hanok_runtime::api::Credentials;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;

/// The registry of references that name none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// `.dockerconfigjson`.
#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

/// One registry's entry.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Auth {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

/// The credentials in these secrets that serve for the image, the most specific first. Secrets that do not
/// parse give none.
pub fn for_image(image: &str, secrets: &[impl AsRef<Secret>]) -> Vec<Credentials> {
    let mut found: Vec<(usize, Credentials)> = secrets
        .iter()
        .flat_map(|secret| entries(secret.as_ref()))
        .filter(|(key, _)| matches(key, image))
        .filter_map(|(key, auth)| Some((key.len(), credentials(auth)?)))
        .collect();
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found
        .into_iter()
        .map(|(_, credentials)| credentials)
        .collect()
}

/// The entries of a secret, of either form.
fn entries(secret: &Secret) -> BTreeMap<String, Auth> {
    let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    if let Some(json) = data(".dockerconfigjson") {
        return serde_json::from_slice(&json.0)
            .map(|config: DockerConfig| config.auths)
            .unwrap_or_default();
    }
    let legacy = data(".dockercfg").and_then(|json| serde_json::from_slice(&json.0).ok());
    legacy.unwrap_or_default()
}

/// What an entry proves.
fn credentials(auth: Auth) -> Option<Credentials> {
    if !auth.identitytoken.is_empty() {
        return Some(Credentials::IdentityToken(auth.identitytoken));
    }
    if !auth.registrytoken.is_empty() {
        return Some(Credentials::RegistryToken(auth.registrytoken));
    }
    let decoded = STANDARD
        .decode(&auth.auth)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let (username, password) = match decoded.as_deref().and_then(|text| text.split_once(':')) {
        Some((username, password)) => (username.to_owned(), password.to_owned()),
        None => (auth.username, auth.password),
    };
    (!username.is_empty()).then_some(Credentials::Basic { username, password })
}

/// Whether an entry's key (`HOST[:PORT][/PATH]`, with or without scheme, `*` for a part of a label) serves for
/// the image.
fn matches(key: &str, image: &str) -> bool {
    let (host, path) = split_image(image);
    let key = key
        .trim_start_matches("https://")
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let key_path = match key_path {
        "v1" | "v2" => "",
        path => path,
    };
    let path_serves = key_path.is_empty()
        || path == key_path
        || path
            .strip_prefix(key_path)
            .is_some_and(|rest| rest.starts_with('/'));
    host_matches(canonical(key_host), canonical(host)) && path_serves
}

/// Docker Hub has several names.
fn canonical(host: &str) -> &str {
    match host {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
        host => host,
    }
}

/// Label by label; a `*` stands for any part of one label.
fn host_matches(pattern: &str, host: &str) -> bool {
    let (pattern, host): (Vec<_>, Vec<_>) =
        (pattern.split('.').collect(), host.split('.').collect());
    pattern.len() == host.len()
        && pattern
            .iter()
            .zip(&host)
            .all(|(pattern, label)| match pattern.split_once('*') {
                None => pattern == label,
                Some((before, after)) => {
                    label.len() >= before.len() + after.len()
                        && label.starts_with(before)
                        && label.ends_with(after)
                }
            })
}

/// Registry and repository of a reference.
fn split_image(image: &str) -> (&str, &str) {
    let name = image.split('@').next().unwrap_or_default();
    match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
            (host, path.split(':').next().unwrap_or_default())
        }
        _ => (DEFAULT_REGISTRY, name.split(':').next().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use std::sync::Arc;

    fn secret(key: &str, json: &str) -> Arc<Secret> {
        let data = [(key.to_owned(), ByteString(json.as_bytes().to_vec()))].into();
        Arc::new(Secret {
            data: Some(data),
            ..Secret::default()
        })
    }

    #[test]
    fn keys_serve_their_registry_and_path() {
        let table = [
            ("https://index.docker.io/v1/", "busybox", true),
            ("docker.io", "library/busybox:1", true),
            ("quay.io", "quay.io/a/b:1", true),
            ("quay.io/a", "quay.io/a/b@sha256:00", true),
            ("quay.io/a", "quay.io/ab/c", false),
            ("*.example.com", "eu.example.com/x", true),
            ("*.example.com", "a.eu.example.com/x", false),
            ("registry:5000", "registry:5000/x", true),
            ("registry:5000", "registry:5001/x", false),
            ("quay.io", "busybox", false),
        ];
        for (key, image, want) in table {
            assert_eq!(matches(key, image), want, "{key} {image}");
        }
    }

    #[test]
    fn both_forms_of_secret_and_all_forms_of_proof_are_read() {
        let json = r#"{"auths": {"r.io": {"auth": "dTpwOnc="}, "r.io/a": {"identitytoken": "t"}}}"#;
        let secrets = [secret(".dockerconfigjson", json)];
        let basic = |username: &str, password: &str| Credentials::Basic {
            username: username.into(),
            password: password.into(),
        };
        let want = vec![Credentials::IdentityToken("t".into()), basic("u", "p:w")];
        assert_eq!(for_image("r.io/a/b", &secrets), want);
        let legacy = [secret(
            ".dockercfg",
            r#"{"r.io": {"username": "u", "password": "p"}}"#,
        )];
        assert_eq!(for_image("r.io/x", &legacy), [basic("u", "p")]);
        assert_eq!(
            for_image("r.io/x", &[secret(".dockerconfigjson", "nonsense")]),
            []
        );
    }
}
