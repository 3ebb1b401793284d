//! Delete: forgets a container that has exited, and its exit record.

use std::fs;
use std::io::ErrorKind;

use hanok_shim::protocol::Reply;

use crate::exit_record;
use crate::failure::{Doing, Failure, Result};
use crate::shim::{Outcome, Shim};

impl Shim {
    pub(crate) fn delete(&mut self, id: &str) -> Result<Outcome> {
        let key = self.container_key(id)?;
        let Some(container) = self.containers.get(&key).filter(|c| !c.is_alive()) else {
            return Err(Failure::invalid(format!("container {id} still runs")));
        };
        let record = exit_record::path(&container.state_dir);
        match fs::remove_file(&record) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).doing(|| format!("remove {}", record.display()));
            }
            _ => {}
        }
        self.containers.remove(&key);
        Ok(Outcome::Done(Reply::Ok))
    }
}
