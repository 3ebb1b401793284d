//! A container's output: from its pipes (or terminal) into the log and to whoever is attached.

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::poller::Stream;
use crate::shim::Shim;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;

/// Reads per wake-up; a container that writes without end must not starve the others.
const BURST: usize = 4;

/// Reads after the end of the container: what a pipe can hold at most (1 MiB, `pipe-max-size`).
const MAX_DRAIN: usize = (1 << 20) / CHUNK + 1;

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// Nothing more for now.
    Empty,
    /// Nothing more ever.
    Ended,
    /// There is more.
    Limit,
}

impl Shim {
    /// Takes output that is there.
    pub(crate) fn copy_output(&mut self, key: u64, stream: Stream) {
        if self.read_output(key, stream, BURST) == Stopped::Ended {
            self.close_output(key, stream);
        }
    }

    /// Takes all that is there after the container's end, then closes the stream, whoever still holds the
    /// other side.
    pub(crate) fn finish_output(&mut self, key: u64, stream: Stream) {
        self.read_output(key, stream, MAX_DRAIN);
        self.close_output(key, stream);
    }

    /// Not a part of its callers: after a clone, each page of stack that they take is copied.
    #[inline(never)]
    fn read_output(&mut self, key: u64, stream: Stream, limit: usize) -> Stopped {
        let mut buffer = [0; CHUNK];
        for _ in 0..limit {
            let Some(container) = self.containers.get_mut(&key) else {
                return Stopped::Ended;
            };
            let fd = match stream {
                Stream::Stdout => &container.io.stdout,
                Stream::Stderr => &container.io.stderr,
            };
            let Some(fd) = fd else { return Stopped::Ended };
            match rustix::io::read(fd.as_fd(), &mut buffer) {
                Ok(0) => return Stopped::Ended,
                Ok(length) => {
                    let bytes = &buffer[..length];
                    if let Some(log) = &mut container.io.log {
                        log.write(stream, bytes);
                    }
                    self.copy_to_attached(key, stream, bytes);
                }
                Err(Errno::AGAIN) => return Stopped::Empty,
                Err(Errno::INTR) => {}
                // A terminal whose other side is closed says EIO.
                Err(_) => return Stopped::Ended,
            }
        }
        Stopped::Limit
    }

    fn close_output(&mut self, key: u64, stream: Stream) {
        let Some(container) = self.containers.get_mut(&key) else {
            return;
        };
        let fd = match stream {
            Stream::Stdout => container.io.stdout.take(),
            Stream::Stderr => container.io.stderr.take(),
        };
        if let Some(fd) = fd {
            self.poller.remove(&fd);
        }
        if let Some(log) = &mut container.io.log {
            log.end(stream);
        }
    }
}
