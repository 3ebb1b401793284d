//! `run`: create and start in one go, in the foreground until its end, or detached.

use super::bundle::Bundle;
use super::create::{CreateOptions, Made};
use super::{OciError, Result, Runtime, delete, start, supervise};

/// How to run a container.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// How to create it.
    pub create: CreateOptions,
    /// Return once its program runs.
    pub detach: bool,
    /// Leave the container when its program has ended.
    pub keep: bool,
}

impl Runtime {
    /// Runs a container. Returns its exit code, 0 when it is detached, and warnings.
    pub fn run(&self, id: &str, options: &RunOptions) -> Result<(i32, Vec<String>)> {
        let bundle = Bundle::load(&options.create.bundle)?;
        let tty = bundle.process()?.terminal() == Some(true);
        let socket = options.create.console_socket.is_some();
        if tty && options.detach && !socket {
            let message = "a detached process with a terminal needs --console-socket";
            return Err(OciError::Option(message.into()));
        }
        if socket && !tty {
            let message = "--console-socket is for a process with a terminal";
            return Err(OciError::Option(message.into()));
        }
        let signals = match options.detach {
            true => None,
            false => Some(supervise::take_signals()?),
        };
        let Made { record, master } = self.make(id, &bundle, &options.create)?;
        let mut warnings = match start::start(&record) {
            Ok(warnings) => warnings,
            Err(error) => {
                // The first error is the one to tell.
                let _ = self.delete(id, true);
                return Err(error);
            }
        };
        let Some(signals) = signals else {
            return Ok((0, warnings));
        };
        let code = supervise::supervise(&signals, record.pid, master)?;
        if !options.keep {
            warnings.extend(delete::delete(self, &record)?);
        }
        Ok((code, warnings))
    }
}
