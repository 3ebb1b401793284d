//! The registry client: what a reference points to, documents, blobs.
//!
//! Own rather than a library: mirrors, resuming, deadlines and the rule about which host sees which secret
//! are the point of it. It streams blobs as [`Piece`]s and checks documents against their digests; checking
//! a blob is its receiver's work.

pub(crate) mod auth;
pub mod hosts;
pub(crate) mod http;

mod fetch;

use std::path::PathBuf;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Response, StatusCode};
use tokio::sync::Mutex;

use crate::api::Credentials;
use crate::content::Digest;
use crate::image::manifest::MAX_DOCUMENT;
use crate::image::reference::Reference;
#[cfg(doc)]
use crate::unpack::pipe::Piece;
use auth::parse_challenges;
pub use hosts::{Endpoint, RegistryConfig};
use http::{Request, Transport};

/// The manifests and indexes we understand.
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// Why a registry did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has no such thing.
    #[error("{0}: not found")]
    NotFound(String),
    /// It does not let us.
    #[error(
        "{what}: pull access denied, repository does not exist or may require authorization: server answered {status}"
    )]
    Denied {
        /// What was asked for.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// Another unexpected answer.
    #[error("unexpected status from {method} request to {url}: {status}")]
    Status {
        /// HTTP method.
        method: String,
        /// URL without its query.
        url: String,
        /// HTTP status.
        status: StatusCode,
        /// Seconds that the server asks to wait.
        retry_after: Option<u64>,
    },
    /// No answer.
    #[error("failed to do request: {method} {url:?}")]
    Request {
        /// HTTP method.
        method: String,
        /// URL without its query.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer broke off.
    #[error("failed to read the response")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is too large for what it is.
    #[error("response is larger than {0} bytes")]
    TooLarge(usize),
    /// A document that is not the one asked for.
    #[error("registry sent {got} in place of {want}")]
    Digest {
        /// Asked for.
        want: Digest,
        /// Got.
        got: Digest,
    },
    /// A redirect that is not followed.
    #[error("refused a redirect from {url}: {why}")]
    Redirect {
        /// From where.
        url: String,
        /// Why.
        why: &'static str,
    },
    /// A token service that is not asked.
    #[error("refused the token service {realm:?}: {why}")]
    Realm {
        /// Its URL.
        realm: String,
        /// Why.
        why: &'static str,
    },
    /// The token service refused.
    #[error("failed to fetch a token from {realm}: status {status}")]
    Token {
        /// Its URL.
        realm: String,
        /// HTTP status.
        status: u16,
    },
    /// The token service answered, but not with a token.
    #[error("the token service {realm} sent no token")]
    BadToken {
        /// Its URL.
        realm: String,
    },
    /// TLS cannot be set up.
    #[error("failed to set up TLS")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A hosts.toml that cannot be used.
    #[error("failed to read registry settings {}", path.display())]
    HostsFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Whoever wanted a blob is gone.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Whether trying again may help.
    fn is_transient(&self) -> bool {
        match self {
            Error::Request { .. } | Error::Body(_) => true,
            Error::Status { status, .. } => {
                status.is_server_error()
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
            }
            _ => false,
        }
    }

    /// Whether other credentials may help.
    fn is_denial(&self) -> bool {
        matches!(self, Error::Denied { .. } | Error::Token { .. })
    }
}

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
    ) -> Result<(Arc<Session>, Resolved), Error> {
        let mut last = Error::NotFound(reference.to_string());
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

impl Session {
    async fn resolve(&self, ask: Ask, known: impl Fn(&Digest) -> bool) -> Result<Resolved, Error> {
        let identifier = self.reference.identifier();
        let url = self.url("manifests", &identifier);
        if ask == Ask::Digest
            && let Some(resolved) = self.head(&url, &known).await?
        {
            return Ok(resolved);
        }
        let mut response = self.request(&Method::GET, &url, None).await?;
        let media_type = text_header(&response, "content-type");
        let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        let bytes = self.transport.body(&mut response, limit).await?;
        let digest = Digest::of(&bytes);
        let announced = text_header(&response, "docker-content-digest").parse().ok();
        for want in [self.reference.digest().copied(), announced]
            .into_iter()
            .flatten()
        {
            if want != digest {
                return Err(Error::Digest { want, got: digest });
            }
        }
        Ok(Resolved {
            digest,
            media_type,
            bytes: Some(bytes),
        })
    }

    /// Asks for the digest only, which is enough when the document is known.
    async fn head(
        &self,
        url: &str,
        known: impl Fn(&Digest) -> bool,
    ) -> Result<Option<Resolved>, Error> {
        let response = self.request(&Method::HEAD, url, None).await?;
        let announced = text_header(&response, "docker-content-digest").parse().ok();
        let digest: Option<Digest> = self.reference.digest().copied().or(announced);
        let media_type = text_header(&response, "content-type");
        Ok(digest.filter(known).map(|digest| Resolved {
            digest,
            media_type,
            bytes: None,
        }))
    }

    /// Fetches a manifest or index by digest.
    pub async fn document(&self, digest: &Digest) -> Result<Vec<u8>, Error> {
        self.small("manifests", digest).await
    }

    /// Fetches a small blob, such as a config, by digest.
    pub async fn small_blob(&self, digest: &Digest) -> Result<Vec<u8>, Error> {
        self.small("blobs", digest).await
    }

    async fn small(&self, kind: &str, digest: &Digest) -> Result<Vec<u8>, Error> {
        let url = self.url(kind, &digest.to_string());
        let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        let mut retry = fetch::Retry::new(&self.config);
        loop {
            let attempt = async {
                let mut response = self.request(&Method::GET, &url, None).await?;
                self.transport.body(&mut response, limit).await
            };
            match attempt.await {
                Ok(bytes) if Digest::of(&bytes) == *digest => return Ok(bytes),
                Ok(bytes) => {
                    return Err(Error::Digest {
                        want: *digest,
                        got: Digest::of(&bytes),
                    });
                }
                Err(e) => retry.pause(e).await?,
            }
        }
    }

    fn url(&self, kind: &str, identifier: &str) -> String {
        let Endpoint {
            origin,
            path,
            mirror,
            ..
        } = &self.endpoint;
        let repository = self.reference.repository();
        let whose = match mirror {
            true => format!("?{}", auth::form(&[("ns", self.reference.registry())])),
            false => String::new(),
        };
        format!("{origin}{path}/{repository}/{kind}/{identifier}{whose}")
    }

    /// Sends a request, answering a challenge if there is one, trying again what may be a passing failure.
    async fn request(
        &self,
        method: &Method,
        url: &str,
        range_from: Option<u64>,
    ) -> Result<Response<Incoming>, Error> {
        let mut retry = fetch::Retry::new(&self.config);
        loop {
            match self.try_request(method, url, range_from).await {
                Err(e) => retry.pause(e).await?,
                ok => return ok,
            }
        }
    }

    async fn try_request(
        &self,
        method: &Method,
        url: &str,
        range_from: Option<u64>,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::get(url.to_owned());
        request.method = method.clone();
        request.accept = url.contains("/manifests/").then_some(ACCEPT);
        request.range_from = range_from;
        let sent = self.authorization.lock().await.clone();
        request.authorization.clone_from(&sent);
        let mut response = self.transport.send(&request, &self.endpoint.tls).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            request.authorization = self.authorize(&response, sent.as_deref()).await?;
            if request.authorization.is_some() {
                response = self.transport.send(&request, &self.endpoint.tls).await?;
            }
        }
        let status = response.status();
        let what = || self.reference.to_string();
        match status {
            _ if status.is_success() => Ok(response),
            StatusCode::NOT_FOUND => Err(Error::NotFound(what())),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Error::Denied {
                what: what(),
                status: status.as_u16(),
            }),
            _ => Err(Error::Status {
                method: method.to_string(),
                url: url.to_owned(),
                status,
                retry_after: text_header(&response, "retry-after").parse().ok(),
            }),
        }
    }

    /// Answers a challenge, once for all requests that meet it at the same time.
    async fn authorize(
        &self,
        response: &Response<Incoming>,
        sent: Option<&str>,
    ) -> Result<Option<String>, Error> {
        let mut current = self.authorization.lock().await;
        if current.as_deref() != sent {
            return Ok(current.clone());
        }
        let challenges: Vec<_> = response
            .headers()
            .get_all("www-authenticate")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(parse_challenges)
            .collect();
        let repository = self.reference.repository();
        let credentials = self.credentials.as_ref();
        let answer = auth::answer(
            &self.transport,
            &self.endpoint,
            &challenges,
            credentials,
            repository,
        );
        *current = answer.await?;
        Ok(current.clone())
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
