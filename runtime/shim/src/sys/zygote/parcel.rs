//! The descriptors of an order, which go to the zygote beside it.
//!
//! The zygote has a table of its own. With the shim's, a process that it makes would have a copy of whatever the shim has
//! open at that moment, up to its exec: the far ends of channels and pipes, whose ends of file others wait for. What
//! comes is found where the shim says on the board, for the kernel gives the lowest numbers that are free.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::super::{Result, check, check_int};

/// Most descriptors of an order, which has some and the lists of v1's cgroups.
const MOST: usize = 64;

/// The zygote's end of the socket, in the zygote.
const SOCKET: RawFd = 3;

/// The first that came, in the zygote.
const FIRST: RawFd = SOCKET + 1;

/// Descriptors to send.
#[derive(Debug, Default)]
pub(super) struct Parcel<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Parcel<'a> {
    /// Adds one, and tells the zygote's number of it.
    pub(super) fn add(&mut self, fd: BorrowedFd<'a>) -> Result<RawFd> {
        let place = RawFd::try_from(self.0.len()).map_err(|_| Errno::TOOBIG)?;
        self.0.push(fd);
        Ok(FIRST + place)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// In the shim: `E2BIG` when there are too many. Never waits.
    pub(super) fn send(&self, socket: &OwnedFd) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if self.0.len() > MOST || !control.push(SendAncillaryMessage::ScmRights(&self.0)) {
            return Err(Errno::TOOBIG);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(socket, &[IoSlice::new(&[0])], &mut control, flags).map(drop)
    }
}

/// The shim's end and the zygote's.
pub(super) fn socket() -> Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socketpair(family, kind, SocketFlags::CLOEXEC, None)
}

/// In the zygote: keeps its end of the socket, and nothing else beside the standard streams.
pub(super) fn keep(socket: &OwnedFd) -> Result<()> {
    let socket = socket.as_raw_fd();
    if socket != SOCKET {
        // SAFETY: whoever owns what was there never uses it in this process, which does not return.
        check_int(unsafe { libc::dup3(socket, SOCKET, libc::O_CLOEXEC) })?;
    }
    close_received()
}

/// In the zygote: closes what has come.
pub(super) fn close_received() -> Result<()> {
    // SAFETY: nobody in this process owns a descriptor of those: see `keep` and `receive`.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, 0) };
    check(closed).map(drop)
}

/// In the zygote: takes so many descriptors to the numbers that the order names. Allocates nothing.
pub(super) fn receive(count: usize) -> Result<()> {
    // SAFETY: it is open for as long as this process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let parts = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(socket.as_fd(), parts, &mut control, flags)?;
    let mut next = FIRST;
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(received) = message else {
            continue;
        };
        for fd in received {
            if fd.into_raw_fd() != next {
                return Err(Errno::BADF);
            }
            next += 1;
        }
    }
    match usize::try_from(next - FIRST) {
        Ok(came) if came == count => Ok(()),
        _ => Err(Errno::BADF),
    }
}
