//! `start`: the program of a created container.

use std::fs;
use std::os::unix::net::UnixStream;

use super::create::{open_dir, socket_address};
use super::launcher::outcome;
use super::record::{Record, START_SOCKET, Status};
use super::{OciError, Result, Runtime, hooks};

impl Runtime {
    /// Starts a created container; returns once its program runs. The warnings are of hooks that failed after
    /// that.
    pub fn start(&self, id: &str) -> Result<Vec<String>> {
        start(&self.state(id)?)
    }
}

pub(super) fn start(record: &Record) -> Result<Vec<String>> {
    record.require("start", &[Status::Created])?;
    let path = record.dir.join(START_SOCKET);
    let dir = open_dir(&record.dir)?;
    let connection =
        UnixStream::connect(socket_address(&dir)).map_err(OciError::io("connect to", &path))?;
    // From now on it counts as started, whatever comes of it.
    fs::remove_file(&path).map_err(OciError::io("remove", &path))?;
    outcome(&connection)?;
    let failed = hooks::run_all(&record.poststart, record.pid);
    Ok(failed
        .iter()
        .map(|error| crate::service::chain(error))
        .collect())
}
