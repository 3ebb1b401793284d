//! `ps`: the processes of a container.

use super::record::Status;
use super::{Result, Runtime, cgroups};

impl Runtime {
    /// Process ids, in order; none once the container has ended.
    pub fn processes(&self, id: &str) -> Result<Vec<i32>> {
        let record = self.state(id)?;
        match record.cgroups.first() {
            Some(directory) if record.status() != Status::Stopped => cgroups::processes(directory),
            _ => Ok(Vec::new()),
        }
    }
}
