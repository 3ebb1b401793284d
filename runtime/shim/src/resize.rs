//! Resize: the window size of a container's or an exec's terminal.

use hanok_shim::protocol::Reply;
use rustix::termios::{Winsize, tcsetwinsize};

use crate::failure::{Doing, Failure, Result};
use crate::shim::{Outcome, Shim};

impl Shim {
    pub(crate) fn resize(&mut self, id: &str, rows: u16, cols: u16) -> Result<Outcome> {
        let terminal = match self.exec_key(id) {
            Some(key) => self.execs.get(&key).and_then(|e| e.terminal.as_ref()),
            None => {
                let key = self.container_key(id)?;
                self.containers
                    .get(&key)
                    .and_then(|c| c.io.terminal.as_ref())
            }
        };
        let terminal = terminal.ok_or_else(|| Failure::invalid(format!("{id} has no terminal")))?;
        let size = Winsize {
            ws_row: rows,
            ws_col: cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(terminal, size).doing(|| format!("resize the terminal of {id}"))?;
        Ok(Outcome::Done(Reply::Ok))
    }
}
