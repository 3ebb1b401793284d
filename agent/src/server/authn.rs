//! Who is calling: a client certificate, a bearer token, or nobody.
//!
//! A certificate has been verified against the client CA in the TLS handshake already; here it is only read.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::cache::Cache;
use super::review::{Identity, Reviewer};

/// Longest bearer token that is looked at, bytes. Service account tokens are about 1 KiB.
const MAX_TOKEN: usize = 16 << 10;

/// How callers prove who they are (KubeletConfiguration `authentication`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// Lets callers in without a proof, as `system:anonymous`.
    pub anonymous: bool,
    /// Asks the API server about bearer tokens.
    pub webhook: bool,
    /// How long a valid token's answer is kept.
    pub cache_ttl: Duration,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        Self {
            anonymous: false,
            webhook: true,
            cache_ttl: Duration::from_secs(120),
        }
    }
}

/// Finds out who is calling.
pub(super) struct Authenticator {
    config: AuthenticationConfig,
    reviewer: Arc<dyn Reviewer>,
    /// By the token's digest: tokens themselves are not kept in memory.
    tokens: Cache<[u8; 32], Identity>,
}

impl Authenticator {
    pub(super) fn new(config: AuthenticationConfig, reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            config,
            reviewer,
            tokens: Cache::new(),
        }
    }

    /// The caller; none means 401. `certificate` is the verified leaf in DER.
    pub(super) async fn identify(
        &self,
        certificate: Option<&[u8]>,
        headers: &HeaderMap,
    ) -> Option<Identity> {
        if let Some(identity) = certificate.and_then(from_certificate) {
            return Some(identity);
        }
        if let Some(token) = bearer_token(headers) {
            return self.token_owner(token).await;
        }
        self.config.anonymous.then(anonymous)
    }

    async fn token_owner(&self, token: &str) -> Option<Identity> {
        if !self.config.webhook || token.len() > MAX_TOKEN {
            return None;
        }
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(identity) = self.tokens.get(&key) {
            return Some(identity);
        }
        match self.reviewer.review_token(token).await {
            Ok(Some(identity)) => {
                self.tokens
                    .put(key, identity.clone(), self.config.cache_ttl);
                Some(identity)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "cannot check a bearer token");
                None
            }
        }
    }
}

/// The token of an `Authorization: Bearer` header.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The subject of a certificate: its common name is the user, its organizations are the groups.
fn from_certificate(der: &[u8]) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if user.is_empty() {
        return None;
    }
    let mut groups: Vec<String> = subject
        .iter_organization()
        .filter_map(|organization| organization.as_str().ok())
        .map(str::to_owned)
        .collect();
    groups.push("system:authenticated".to_owned());
    Some(Identity {
        user,
        groups,
        ..Identity::default()
    })
}

fn anonymous() -> Identity {
    Identity {
        user: "system:anonymous".to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        ..Identity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn only_bearer_tokens_are_taken() {
        assert_eq!(bearer_token(&headers("Bearer abc")), Some("abc"));
        assert_eq!(bearer_token(&headers("bearer  abc ")), Some("abc"));
        assert_eq!(bearer_token(&headers("Basic abc")), None);
        assert_eq!(bearer_token(&headers("Bearer ")), None);
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_certificate_reader_panic(der in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = from_certificate(&der);
        }
    }
}
