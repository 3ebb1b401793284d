//! Bytes and descriptors over unix sockets (`SCM_RIGHTS`). No unsafe code: rustix does it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::Result;

/// Most descriptors beside one frame: stdin, stdout, stderr.
pub const MAX_FDS: usize = 3;

/// Sends bytes with descriptors beside the first of them, once; returns how many bytes went. `EAGAIN` on a
/// non-blocking socket means that nothing went, neither bytes nor descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    loop {
        let parts = [IoSlice::new(bytes)];
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Sends all bytes over a blocking socket, the descriptors beside the first of them.
pub fn send_all(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut sent = send(&socket, bytes, fds)?;
    while sent < bytes.len() {
        sent += send(&socket, &bytes[sent..], &[])?;
    }
    Ok(())
}

/// Receives bytes once and appends the descriptors that came beside them, close-on-exec. 0 at the end of
/// the stream. `EMSGSIZE` when somebody sends more descriptors than [`MAX_FDS`] at once.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let got = match recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            done => done?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MSGSIZE);
        }
        return Ok(got.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_the_first_byte() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send_all(&a, b"hello", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut fds = Vec::new();
        let mut buffer = [0; 1];
        assert_eq!(receive(&b, &mut buffer, &mut fds).unwrap(), 1);
        assert_eq!(fds.len(), 1);
        let mut passed = std::fs::File::from(fds.pop().unwrap());
        passed.write_all(b"x").unwrap();
        drop(passed);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (a, _b) = UnixStream::pair().unwrap();
        let fds = [a.as_fd(); MAX_FDS + 1];
        assert_eq!(send(&a, b"x", &fds), Err(Errno::INVAL));
    }
}
