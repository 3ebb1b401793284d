//! Why a registry did not give what was asked for, and what may help.

use std::path::PathBuf;

use hyper::StatusCode;

use crate::content::Digest;

/// Why a registry did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
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

impl RegistryError {
    /// Whether trying again may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            RegistryError::Request { .. } | RegistryError::Body(_) => true,
            RegistryError::Status { status, .. } => {
                status.is_server_error()
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
            }
            _ => false,
        }
    }

    /// Whether other credentials may help.
    pub(super) fn is_denial(&self) -> bool {
        matches!(
            self,
            RegistryError::Denied { .. } | RegistryError::Token { .. }
        )
    }
}
