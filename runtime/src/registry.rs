//! The registry client: what a reference points to, documents, blobs.
//!
//! Own rather than a library: mirrors, resuming, deadlines and the rule about which host sees which secret
//! are the point of it. It streams blobs as [`Piece`]s and checks documents against their digests; checking
//! a blob is its receiver's work.

pub(crate) mod auth;
mod error;
mod fetch;
pub mod hosts;
pub(crate) mod http;
mod session;

use std::sync::Arc;

use hyper::Response;
use hyper::body::Incoming;
use tokio::sync::Mutex;

use crate::api::Credentials;
use crate::content::Digest;
use crate::image::reference::Reference;
#[cfg(doc)]
use crate::unpack::pipe::Piece;
pub use error::RegistryError;
pub use hosts::{Endpoint, RegistryConfig};
use http::Transport;

/// The manifests and indexes we understand.
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// A client for every registry.
#[derive(Debug)]
pub struct Client {
    config: Arc<RegistryConfig>,
    transport: Arc<Transport>,
}

/// What to ask a registry first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// For the digest: the document is probably known.
    Digest,
    /// For the document at once.
    Document,
}

/// What a reference points to.
#[derive(Debug)]
pub struct Resolved {
    /// Digest of the document.
    pub digest: Digest,
    /// Content-Type of the answer.
    pub media_type: String,
    /// The document, unless it was known already.
    pub bytes: Option<Vec<u8>>,
}

/// Talks to one endpoint about one repository, as one user.
#[derive(Debug)]
pub struct Session {
    config: Arc<RegistryConfig>,
    transport: Arc<Transport>,
    endpoint: Endpoint,
    reference: Reference,
    credentials: Option<Credentials>,
    authorization: Mutex<Option<String>>,
}

impl Client {
    /// A client with these settings.
    pub fn new(config: RegistryConfig) -> Self {
        let transport = Transport::new(config.response_timeout, config.stall_timeout);
        Self {
            config: Arc::new(config),
            transport: Arc::new(transport),
        }
    }

    /// Asks each endpoint in turn, with each of the credentials in turn and then without, what the
    /// reference points to. The session is with the one that knew. `known` tells documents that need not
    /// be sent if `ask` is for the digest.
    pub async fn resolve(
        &self,
        reference: &Reference,
        credentials: &[Credentials],
        ask: Ask,
        known: impl Fn(&Digest) -> bool,
    ) -> Result<(Arc<Session>, Resolved), RegistryError> {
        let mut last = RegistryError::NotFound(reference.to_string());
        for endpoint in self.config.endpoints(reference.registry())? {
            if reference.tag().is_some() && !endpoint.resolve {
                continue;
            }
            let some = credentials.iter().filter(|_| !endpoint.mirror).map(Some);
            for credentials in some.chain([None]) {
                let session = Session {
                    config: Arc::clone(&self.config),
                    transport: Arc::clone(&self.transport),
                    endpoint: endpoint.clone(),
                    reference: reference.clone(),
                    credentials: credentials.cloned(),
                    authorization: Mutex::default(),
                };
                last = match session.resolve(ask, &known).await {
                    Ok(resolved) => return Ok((Arc::new(session), resolved)),
                    Err(e) => e,
                };
                tracing::debug!(origin = session.endpoint.origin, error = %last, "cannot resolve here");
                if !last.is_denial() {
                    break;
                }
            }
        }
        Err(last)
    }
}

fn text_header(response: &Response<Incoming>, name: &str) -> String {
    let value = response.headers().get(name);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
