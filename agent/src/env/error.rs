//! What is wrong with an environment.

use std::path::PathBuf;

use super::expand::{LONGEST, MOST};
use super::field::FieldError;
use crate::sinks::ObjectError;

/// Why a container has no environment: the message of a CreateContainerConfigError.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// An object is missing, or the server could not be asked.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The object has no such key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key {
        /// The key.
        key: String,
        /// "ConfigMap" or "Secret".
        kind: &'static str,
        /// The object's namespace.
        namespace: String,
        /// The object's name.
        name: String,
    },
    /// A downward API reference that stands for nothing.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A file of variables is in a volume that the pod has not.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    Volume(String),
    /// A file that has no such variable.
    #[error("environment variable key {key:?} not found in file {file:?}")]
    FileKey {
        /// The variable's name in it.
        key: String,
        /// The file on the node.
        file: PathBuf,
    },
    /// A file that does not exist, or cannot be read.
    #[error("couldn't parse env file {path:?} of volume {volume:?}: {why}")]
    File {
        /// The volume.
        volume: String,
        /// The file in it.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Files of variables in which there is more than a container is given.
    #[error("{what} of all fileKeyRefs have more than {most} bytes together")]
    TooMuch {
        /// "the files" or "the values".
        what: &'static str,
        /// How many they may have.
        most: usize,
    },
    /// The node gave up reading.
    #[error("cannot read the files of all fileKeyRefs")]
    Reading(#[from] tokio::task::JoinError),
    /// A variable that no program can be given.
    #[error(
        "environment variable {0:?} is longer than the {LONGEST} bytes that a program can be given at once"
    )]
    Long(String),
    /// Variables that no program can be given together, and the one at which this was seen.
    #[error(
        "the environment has more than the {MOST} bytes that a program can be given, at variable {0:?}"
    )]
    Most(String),
    /// A source that this node does not know.
    #[error("environment variable {0:?} has a source that this node does not support")]
    Source(String),
}
