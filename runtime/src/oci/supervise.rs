//! Waiting for a process in the foreground: its end, signals to hand on, and the two sides of its terminal.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use hanok_shim::sys::process::kill;
use hanok_shim::sys::signal::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, waitpid};

use super::console::{Raw, follow_own_size};
use super::{OciError, Result};

/// Signals that are handed on.
const SIGNALS: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Bytes copied at once between terminals.
const CHUNK: usize = 16 << 10;

/// Takes signals from now on, for [`supervise`]; before the process is there, so that none is lost.
pub(super) fn take_signals() -> Result<SignalFd> {
    SignalFd::new(&SIGNALS).map_err(|error| OciError::io("open", "signalfd".as_ref())(error.into()))
}

/// Waits for a child of ours; with the master side of its terminal, connects that to our own.
pub(super) fn supervise(signals: &SignalFd, pid: i32, master: Option<OwnedFd>) -> Result<i32> {
    let number = Pid::from_raw(pid).ok_or(Errno::SRCH).map_err(waiting)?;
    let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(waiting)?;
    let raw = master.as_ref().map(|master| {
        follow_own_size(master);
        Raw::enter()
    });
    let mut terminal = Terminal {
        stdin_open: master.is_some(),
        master: master.map(File::from),
    };
    let code = loop {
        if let Some(code) = exit_code(pid)? {
            break code;
        }
        terminal.wait(signals, &pidfd)?;
        for signal in signals.drain().map_err(waiting)? {
            match (signal, &terminal.master) {
                (libc::SIGWINCH, Some(master)) => follow_own_size(master),
                // It may have ended meanwhile.
                (signal, _) => drop(kill(pid, signal)),
            }
        }
    };
    terminal.drain();
    drop(raw);
    Ok(code)
}

/// None while it runs; 128 + n after signal n.
fn exit_code(pid: i32) -> Result<Option<i32>> {
    let status = match waitpid(Pid::from_raw(pid), WaitOptions::NOHANG) {
        Err(Errno::INTR) => return Ok(None),
        done => done.map_err(waiting)?,
    };
    Ok(status.map(|(_, status)| code(status)))
}

fn code(status: WaitStatus) -> i32 {
    match status.terminating_signal() {
        Some(signal) => 128 + signal,
        None => status.exit_status().unwrap_or(0),
    }
}

/// The master side of a terminal and our own standard streams.
struct Terminal {
    master: Option<File>,
    stdin_open: bool,
}

impl Terminal {
    /// Waits for a signal or the end of the process, copying meanwhile.
    fn wait(&mut self, signals: &SignalFd, process: &OwnedFd) -> Result<()> {
        let stdin = io::stdin();
        let mut polled = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(process, PollFlags::IN),
        ];
        if let Some(master) = &self.master {
            polled.push(PollFd::new(master, PollFlags::IN));
            if self.stdin_open {
                polled.push(PollFd::new(&stdin, PollFlags::IN));
            }
        }
        match poll(&mut polled, None) {
            Err(Errno::INTR) => return Ok(()),
            done => done.map_err(waiting)?,
        };
        let ready = |index: usize| polled.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let (output, input) = (ready(2), ready(3));
        if output && !self.copy_output() {
            self.master = None;
        }
        if input && !self.copy_input() {
            self.stdin_open = false;
        }
        Ok(())
    }

    /// False at its end, which a terminal tells as an error.
    fn copy_output(&mut self) -> bool {
        let mut chunk = [0; CHUNK];
        let Some(master) = &mut self.master else {
            return false;
        };
        match master.read(&mut chunk) {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                let mut stdout = io::stdout().lock();
                stdout
                    .write_all(&chunk[..length])
                    .and_then(|()| stdout.flush())
                    .is_ok()
            }
        }
    }

    fn copy_input(&mut self) -> bool {
        let mut chunk = [0; CHUNK];
        let Some(master) = &mut self.master else {
            return false;
        };
        match io::stdin().read(&mut chunk) {
            Ok(0) | Err(_) => false,
            Ok(length) => master.write_all(&chunk[..length]).is_ok(),
        }
    }

    /// What was written before the end.
    fn drain(&mut self) {
        let now = rustix::event::Timespec::default();
        while let Some(master) = &self.master {
            let mut polled = [PollFd::new(master, PollFlags::IN)];
            let ready = poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0);
            if !ready || !self.copy_output() {
                return;
            }
        }
    }
}

fn waiting(error: Errno) -> OciError {
    OciError::io("wait for", "the process".as_ref())(error.into())
}
