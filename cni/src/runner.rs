//! The runner: attaches containers to a network, plugin by plugin.
//!
//! ```text
//! add:  cache entry (no result) ─► plugin 1 ─► plugin 2 … each with the result so far ─► cache entry
//!       failure at plugin n ─► DEL of plugins n … 1 ─► no cache entry
//! del:  cache entry ─► DEL of all plugins, last first, with the result ─► no cache entry
//! ```
//! Calls about one container run one after the other, each in a task of its own, also when its caller is dropped: a DEL
//! that comes meanwhile waits for the ADD. An ADD that is given up ends as one that has failed, and is undone.

mod add;
mod check;
mod collect;
mod del;
mod error;
mod plugin;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use crate::attachment::Attachment;
use crate::cache::Cache;
use crate::config::Config;
use crate::exec::Programs;
use crate::ipam::{self, IpamError, Leases};
use crate::spec::AddResult;
pub use collect::Collected;
pub use error::RunnerError;

/// Where a runner's network comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The first configuration of a directory, looked up anew for every ADD.
    Dir(PathBuf),
    /// This network, always.
    Fixed(Config),
}

/// What a runner works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The network.
    pub source: Source,
    /// Directories of plugins' programs, in the order of search.
    pub bin_dirs: Vec<PathBuf>,
    /// Directory of cached results; on tmpfs, as attachments die with the boot.
    pub cache_dir: PathBuf,
    /// Directory of leases, one directory below it per network; on tmpfs as well.
    pub ipam_dir: PathBuf,
    /// Serve `bridge` and `loopback` (with `host-local`) in this process even when their programs are
    /// there. Without it they are served here only when a program is missing. A [`Config::built_in`]
    /// network is always served here.
    pub prefer_built_in: bool,
    /// How long one call of a program may take.
    pub timeout: Duration,
}

impl Default for Options {
    /// The directories that all runtimes share, our own for state, built-in plugins first.
    fn default() -> Self {
        Self {
            source: Source::Dir("/etc/cni/net.d".into()),
            bin_dirs: vec!["/opt/cni/bin".into()],
            cache_dir: "/run/hanok/cni/results".into(),
            ipam_dir: "/run/hanok/ipam".into(),
            prefer_built_in: true,
            timeout: Duration::from_secs(120),
        }
    }
}

/// Attaches containers to a network and detaches them. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct Runner {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: Options,
    cache: Cache,
    programs: Programs,
    /// One lock per container id in use.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Runner {
    /// A runner. Nothing is read or made before its first call.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let inner = Inner {
            cache: Cache::new(options.cache_dir.clone()),
            programs: Programs {
                dirs: options.bin_dirs.clone(),
                timeout: options.timeout,
            },
            locks: Mutex::default(),
            options,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// ADD: attaches a container whose network namespace exists. After a failure nothing is left, and
    /// when undoing failed too, [`Runner::del`] and [`Runner::garbage_collect`] still know of it.
    pub async fn add(&self, attachment: &Attachment) -> Result<AddResult, RunnerError> {
        self.add_until(attachment, &CancellationToken::new()).await
    }

    /// The same. A plugin's program that runs when `given_up` ends is killed, and those before it are undone.
    pub async fn add_until(
        &self,
        attachment: &Attachment,
        given_up: &CancellationToken,
    ) -> Result<AddResult, RunnerError> {
        attachment.validate()?;
        let span = tracing::info_span!("cni.add", container = attachment.id);
        let (inner, attachment) = (Arc::clone(&self.inner), attachment.clone());
        let given_up = given_up.clone();
        self.run(span, async move {
            let _lock = inner.lock(&attachment.id).await;
            inner.add(attachment, &given_up).await
        })
        .await
    }

    /// DEL: detaches a container. Safe to repeat, safe when its network namespace is gone, safe when
    /// there was no ADD. Every step is tried; what failed is in the error.
    pub async fn del(&self, attachment: &Attachment) -> Result<(), RunnerError> {
        attachment.validate()?;
        let span = tracing::info_span!("cni.del", container = attachment.id);
        let (inner, attachment) = (Arc::clone(&self.inner), attachment.clone());
        self.run(span, async move {
            let _lock = inner.lock(&attachment.id).await;
            inner.del(&attachment).await
        })
        .await
    }

    /// CHECK: whether an attachment is still what ADD has made.
    pub async fn check(&self, attachment: &Attachment) -> Result<(), RunnerError> {
        attachment.validate()?;
        let _lock = self.inner.lock(&attachment.id).await;
        self.inner.check(attachment).await
    }

    /// STATUS: whether ADD could work now. The error says why not.
    pub async fn status(&self) -> Result<(), RunnerError> {
        self.inner.status().await
    }

    /// The result that ADD gave, while the attachment exists.
    #[must_use]
    pub fn cached(&self, id: &str, ifname: &str) -> Option<AddResult> {
        self.inner
            .cache
            .of(id, ifname)
            .into_iter()
            .find_map(|entry| entry.result)
    }

    /// Detaches every container that is not in the list, and frees every lease of such a container.
    /// Containers with a call in progress are left alone.
    pub async fn garbage_collect(&self, valid: &[String]) -> Collected {
        self.inner.garbage_collect(valid).await
    }

    /// Every lease of a network in the runner's directory, and files there that are no leases.
    pub fn leases(&self, network: &str) -> Result<Leases, IpamError> {
        ipam::list(&self.inner.options.ipam_dir.join(network))
    }

    /// Runs work in a task of its own, which goes on when the caller is dropped.
    async fn run<T: Send + 'static>(
        &self,
        span: tracing::Span,
        work: impl Future<Output = Result<T, RunnerError>> + Send + 'static,
    ) -> Result<T, RunnerError> {
        let task = tokio::spawn(tracing::Instrument::instrument(work, span));
        task.await.unwrap_or_else(|e| Err(RunnerError::Task(e)))
    }
}

impl Inner {
    fn config(&self) -> Result<Config, RunnerError> {
        match &self.options.source {
            Source::Dir(dir) => Ok(Config::load(dir)?),
            Source::Fixed(config) => Ok(config.clone()),
        }
    }

    /// Waits for other calls about this container.
    async fn lock(&self, id: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever holds or waits for a lock keeps a reference to it.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(id.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// Containers with a call in progress.
    fn busy(&self) -> Vec<String> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let used = locks.iter().filter(|(_, lock)| Arc::strong_count(lock) > 1);
        used.map(|(id, _)| id.clone()).collect()
    }
}
