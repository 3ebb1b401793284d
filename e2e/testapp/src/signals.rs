//! Waiting for signals, by signalfd.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::say;

type Code = Result<u8, Box<dyn std::error::Error>>;

/// Prints every signal; the first of TERM, INT, USR1 ends it with 0 unless they are to be ignored.
pub(crate) fn catch(ignore: bool) -> Code {
    let fd = listen(&[
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGHUP,
    ])?;
    say("waiting for signals");
    loop {
        let Some(info) = fd.read_signal()? else {
            continue;
        };
        let signal = Signal::try_from(i32::try_from(info.ssi_signo)?)?;
        say(&format!("caught {signal}"));
        if !ignore && matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGUSR1) {
            return Ok(0);
        }
    }
}

/// Sleeps; TERM and INT end it early with 0.
pub(crate) fn sleep(duration: Option<Duration>) -> Code {
    let fd = listen(&[Signal::SIGTERM, Signal::SIGINT])?;
    let timeout = match duration {
        Some(duration) => PollTimeout::try_from(duration)?,
        None => PollTimeout::NONE,
    };
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout)?;
    Ok(0)
}

fn listen(signals: &[Signal]) -> Result<SignalFd, Box<dyn std::error::Error>> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    Ok(SignalFd::new(&set)?)
}
