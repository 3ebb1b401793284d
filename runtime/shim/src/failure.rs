//! A request that failed: what the caller is told, and how system call errors become that.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use hanok_shim::protocol::{FailureKind, Reply};
use rustix::io::Errno;
use thiserror::Error;

/// Result of a step of a request.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Content of [`Reply::Failed`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// What the caller acts on.
    pub(crate) kind: FailureKind,
    /// What a person reads.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Invalid, message)
    }

    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        Self::new(FailureKind::NotFound, format!("no {what} {id:?}"))
    }

    pub(crate) fn system(message: impl Into<String>) -> Self {
        Self::new(FailureKind::System, message)
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self::Failed {
            kind: failure.kind,
            message: failure.message,
        }
    }
}

/// Says what was being done when a system call failed.
pub(crate) trait Doing<T> {
    /// `what` completes the sentence "cannot ..."; it is only made when needed.
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T> Doing<T> for std::result::Result<T, Errno> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|errno| {
            Failure::system(format!("cannot {}: {}", what().into(), describe(errno)))
        })
    }
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
            .doing(what)
    }
}

/// Most complaints that the shim's log takes; it must not grow without end.
const MAX_COMPLAINTS: u32 = 100;

/// Writes a failure that nobody waits for to the shim's log.
pub(crate) fn complain(failure: &Failure) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if COUNT.fetch_add(1, Ordering::Relaxed) < MAX_COMPLAINTS {
        // There is nowhere else to go with it.
        let _ = writeln!(std::io::stderr(), "{failure}");
    }
}

/// The kernel's words for an error number, in lower case and without the number.
pub(crate) fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let mut text = text
        .split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_action_and_the_reason() {
        let failed: std::result::Result<(), Errno> = Err(Errno::NOENT);
        let failure = failed.doing(|| "open /x").unwrap_err();
        assert_eq!(failure.message, "cannot open /x: no such file or directory");
        assert_eq!(failure.kind, FailureKind::System);
    }
}
