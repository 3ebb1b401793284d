//! Deleting a link without waiting for its last references.
//!
//! A link is out of its namespace within a millisecond or two: nobody finds it, nothing passes it, its
//! name is free. After that the kernel keeps the requester waiting for an RCU barrier, 15 ms and more,
//! without holding the lock of the network. The echo of the deletion (kernel 6.2) tells the first of the
//! two moments. Without an echo the acknowledgement comes, at the second one.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use netlink_packet_core::{NLM_F_ACK, NLM_F_ECHO, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{NetlinkError, RouteRequest, Socket, append, link};

/// Deletes a link of the calling thread's namespace; a missing one is fine.
pub(crate) fn delete_link(name: &str) -> Result<(), NetlinkError> {
    let request = link::delete(name);
    let what = request.what.clone();
    delete(request).map_err(|source| NetlinkError { what, source })
}

fn delete(request: RouteRequest) -> io::Result<()> {
    /// The only message of the socket.
    const SEQUENCE: u32 = 1;
    let mut bytes = Vec::new();
    append(
        &mut bytes,
        request.message,
        NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO,
        SEQUENCE,
    );
    let socket = Arc::new(Socket::route().map_err(|e| e.source)?);
    let (mut mine, mut theirs) = UnixStream::pair()?;
    let sender = Arc::clone(&socket);
    // The thread inherits our namespace; the socket belongs to it anyway.
    thread::Builder::new()
        .name("cni-delete".to_owned())
        .spawn(move || {
            if let Err(e) = sender.send(&bytes) {
                let _ = theirs.write_all(&e.raw_os_error().unwrap_or(0).to_ne_bytes());
            }
        })?;
    let mut sending = true;
    loop {
        let mut fds = vec![PollFd::new(socket.raw.as_fd(), PollFlags::POLLIN)];
        if sending {
            fds.push(PollFd::new(mine.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let ready = |i: usize| fds.get(i).and_then(PollFd::any).unwrap_or(false);
        if ready(0) {
            if let Some(end) = answer(&socket, SEQUENCE)? {
                let fine = request
                    .tolerate
                    .iter()
                    .any(|e| Some(*e as i32) == end.raw_os_error());
                return if fine || end.raw_os_error() == Some(0) {
                    Ok(())
                } else {
                    Err(end)
                };
            }
        } else if ready(1) {
            // Four bytes of a failed send, or the end of a thread that has sent: the answer is there.
            let mut code = [0; 4];
            if mine.read_exact(&mut code).is_ok() {
                return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code)));
            }
            sending = false;
        }
    }
}

/// The end of the deletion as an error number, 0 for success; none for messages of no interest.
fn answer(socket: &Socket, sequence: u32) -> io::Result<Option<io::Error>> {
    for message in socket.receive::<RouteNetlinkMessage>()? {
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(_)) => {
                return Ok(Some(io::Error::from_raw_os_error(0)));
            }
            NetlinkPayload::Error(answer) => return Ok(Some(answer.to_io())),
            _ => {}
        }
    }
    Ok(None)
}
