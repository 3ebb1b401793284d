//! seccomp filters: from a policy to the bytes that the shim loads.
//!
//! Compiling is done here, in the agent, by libseccomp; the shim only hands the finished program to the
//! kernel. A program is compiled once and kept by the hash of what it was made from, so a container pays
//! for loading only. This module reads profile files and writes nothing.

mod compile;
mod default;
mod profile;
mod shorten;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::api::SeccompProfile;

pub use profile::{Arg, Policy, Recent, Rule};

/// Largest profile file that is read, in bytes.
const MAX_PROFILE: u64 = 1 << 20;

/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`: without it kernels before 5.16 switch speculative store bypass off
/// for the whole process, which costs some programs half of their speed.
const FLAG_SPEC_ALLOW: u32 = 1 << 2;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The profile cannot be read.
    #[error("cannot read seccomp profile {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The path leaves the profile directory.
    #[error("seccomp profile {path} must not contain \"..\"")]
    Path {
        /// What was given.
        path: PathBuf,
    },
    /// The file is empty or larger than any profile.
    #[error("seccomp profile {path} is {what}")]
    Size {
        /// Its path.
        path: PathBuf,
        /// "empty" or "larger than 1 MiB".
        what: &'static str,
    },
    /// The file is not an OCI profile.
    #[error("seccomp profile {path} is not valid")]
    Parse {
        /// Its path.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The profile says something that cannot be compiled.
    #[error("seccomp profile cannot be compiled: {0}")]
    Compile(String),
}

/// A compiled filter.
#[derive(Debug, PartialEq, Eq)]
pub struct Filter {
    /// `struct sock_filter` array in native byte order.
    pub program: Vec<u8>,
    /// `SECCOMP_FILTER_FLAG_*` bits to load it with.
    pub flags: u32,
}

/// The filters compiled so far.
#[derive(Debug)]
pub struct Filters {
    root: PathBuf,
    compiled: Mutex<HashMap<[u8; 32], Arc<Filter>>>,
}

impl Filters {
    /// Filters whose Localhost profiles with a relative path are looked up below `root`.
    pub fn new(root: PathBuf) -> Self {
        Filters {
            root,
            compiled: Mutex::default(),
        }
    }

    /// The filter for a profile and a container's bounding set (bit n = capability n). None when the
    /// profile is Unconfined. Reads a file and may compile for some milliseconds: not for an async thread
    /// unless the profile is RuntimeDefault and was asked for before.
    pub fn get(
        &self,
        profile: &SeccompProfile,
        capabilities: u64,
    ) -> Result<Option<Arc<Filter>>, SeccompError> {
        match profile {
            SeccompProfile::Unconfined => Ok(None),
            SeccompProfile::RuntimeDefault => {
                let relevant = capabilities & default::relevant_capabilities();
                self.cached(default_key(relevant), || Ok(default::policy(relevant)))
                    .map(Some)
            }
            SeccompProfile::Localhost(path) => {
                let path = self.profile_path(path)?;
                let bytes = read_profile(&path)?;
                let mut hash = Sha256::new();
                hash.update(b"file");
                hash.update(&bytes);
                self.cached(hash.finalize().into(), || {
                    Policy::parse(&bytes).map_err(|source| SeccompError::Parse { path, source })
                })
                .map(Some)
            }
        }
    }

    /// Whether [`Filters::get`] has only to look the filter up.
    pub fn is_compiled(&self, profile: &SeccompProfile, capabilities: u64) -> bool {
        match profile {
            SeccompProfile::Unconfined => true,
            SeccompProfile::RuntimeDefault => {
                let relevant = capabilities & default::relevant_capabilities();
                self.lock().contains_key(&default_key(relevant))
            }
            SeccompProfile::Localhost(_) => false,
        }
    }

    fn profile_path(&self, path: &Path) -> Result<PathBuf, SeccompError> {
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(SeccompError::Path {
                path: path.to_owned(),
            });
        }
        Ok(self.root.join(path))
    }

    fn cached(
        &self,
        key: [u8; 32],
        policy: impl FnOnce() -> Result<Policy, SeccompError>,
    ) -> Result<Arc<Filter>, SeccompError> {
        if let Some(filter) = self.lock().get(&key) {
            return Ok(filter.clone());
        }
        // Two callers may compile the same policy at once; both get the same bytes.
        let filter = Arc::new(policy()?.compile()?);
        self.lock().insert(key, filter.clone());
        Ok(filter)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<Filter>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Policy {
    /// The filter of this policy alone, remembered nowhere. Takes some milliseconds.
    pub fn compile(&self) -> Result<Filter, SeccompError> {
        let program = compile::compile(self)?;
        let flags = if self.flags.is_empty() {
            FLAG_SPEC_ALLOW
        } else {
            self.flag_bits()?
        };
        Ok(Filter { program, flags })
    }
}

fn default_key(relevant: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"default");
    hash.update(relevant.to_ne_bytes());
    hash.finalize().into()
}

fn read_profile(path: &Path) -> Result<Vec<u8>, SeccompError> {
    let read = |source| SeccompError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(read)?.len();
    if size == 0 {
        return Err(SeccompError::Size {
            path: path.to_owned(),
            what: "empty",
        });
    }
    if size > MAX_PROFILE {
        return Err(SeccompError::Size {
            path: path.to_owned(),
            what: "larger than 1 MiB",
        });
    }
    std::fs::read(path).map_err(read)
}

#[cfg(test)]
mod tests;
