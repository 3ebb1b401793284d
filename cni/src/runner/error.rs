//! What can go wrong with an attachment.

use crate::attachment::InvalidAttachment;
use crate::cache::CacheError;
use crate::config::ConfigError;
use crate::exec::ExecError;
use crate::ipam::IpamError;
use crate::plugins::PluginError;

/// A call of the runner failed.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// There is no usable network.
    #[error("cni config is not usable")]
    Config(#[from] ConfigError),
    /// The attachment's parts are not fit for paths and environments.
    #[error("attachment is invalid")]
    Attachment(#[from] InvalidAttachment),
    /// ADD of something that is attached.
    #[error("container {id:?} has interface {ifname:?} on network {network:?} already")]
    Exists {
        /// The container.
        id: String,
        /// The interface.
        ifname: String,
        /// The network.
        network: String,
    },
    /// CHECK of something that was never attached.
    #[error("container {id:?} is not attached by {ifname:?}")]
    NotAttached {
        /// The container.
        id: String,
        /// The interface.
        ifname: String,
    },
    /// A built-in plugin failed.
    #[error("plugin type={plugin:?} (built-in) failed ({command})")]
    BuiltIn {
        /// Its type.
        plugin: String,
        /// ADD, DEL, CHECK.
        command: &'static str,
        /// What it was.
        #[source]
        source: PluginError,
    },
    /// An executed plugin failed.
    #[error("plugin type={plugin:?} failed ({command})")]
    Exec {
        /// Its type.
        plugin: String,
        /// ADD, DEL, CHECK, STATUS, GC.
        command: &'static str,
        /// What it was.
        #[source]
        source: ExecError,
    },
    /// Nobody wanted the result of an executed plugin any more, and it was killed.
    #[error("plugin type={0:?} was not waited for (ADD)")]
    GivenUp(String),
    /// Cached results.
    #[error("results cannot be kept")]
    Cache(#[from] CacheError),
    /// Leases of no network in particular.
    #[error("leases cannot be freed")]
    Ipam(#[from] IpamError),
    /// Several steps of a teardown failed; every step was tried.
    #[error("{}", several(.0))]
    Several(Vec<RunnerError>),
    /// The task of a call ended without a result.
    #[error("the task of the call failed")]
    Task(#[source] tokio::task::JoinError),
}

impl RunnerError {
    /// One error, or a list of them; nothing when nothing failed.
    pub(super) fn of(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// The error and all its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

fn several(errors: &[RunnerError]) -> String {
    let texts: Vec<_> = errors.iter().map(RunnerError::chain).collect();
    texts.join("; ")
}
