//! A blocking netlink socket that sends several requests as one batch.
//!
//! The kernel carries out a request while it is being sent, so that there is nothing to wait for and
//! no need of an async connection: a batch of five messages costs two system calls. A socket belongs to
//! the namespace in which it was opened, wherever its thread goes later.

pub(crate) mod address;
pub(crate) mod gone;
pub(crate) mod link;

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket as RawSocket;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::errno::Errno;

/// The kernel never sends more at once, in bytes.
const MAX_DATAGRAM: usize = 32 << 10;

/// The kernel refused a request, or the socket failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct NetlinkError {
    /// What was asked for, for a person to read.
    pub what: String,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}

impl NetlinkError {
    /// Whether the kernel answered with this error number.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        self.source.raw_os_error() == Some(errno as i32)
    }

    /// Whether what should go is gone already.
    pub(crate) fn is_gone(&self) -> bool {
        self.is(Errno::ENODEV) || self.is(Errno::ENOENT)
    }
}

/// One request of a batch: the message, and how an error shall call it.
#[derive(Debug)]
pub(crate) struct Request<M> {
    pub(crate) what: String,
    pub(crate) flags: u16,
    pub(crate) message: M,
    /// Requests that fail with one of these count as done (something exists or is gone already).
    pub(crate) tolerate: &'static [Errno],
}

/// A request over rtnetlink.
pub(crate) type RouteRequest = Request<RouteNetlinkMessage>;

/// A socket of one netlink protocol.
#[derive(Debug)]
pub(crate) struct Socket {
    raw: RawSocket,
    sequence: u32,
}

impl Socket {
    /// A socket for links, addresses and routes, in the namespace of the calling thread.
    pub(crate) fn route() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_ROUTE)
    }

    /// A socket for nftables, in the namespace of the calling thread.
    pub(crate) fn netfilter() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_NETFILTER)
    }

    fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let failed = |source| NetlinkError {
            what: "open a netlink socket".to_owned(),
            source,
        };
        // The first send binds it, and the kernel is whom an unconnected socket speaks to.
        let raw = RawSocket::new(protocol).map_err(failed)?;
        // Acknowledgements without a copy of the request; old kernels lack it, and we ignore the copy.
        let _ = raw.set_cap_ack(true);
        Ok(Self { raw, sequence: 0 })
    }

    /// Sends requests as one batch and waits for every acknowledgement. Later ones are carried out even
    /// when an earlier one failed; the first error that is not tolerated is returned.
    pub(crate) fn execute<M>(&mut self, requests: Vec<Request<M>>) -> Result<(), NetlinkError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + std::fmt::Debug,
    {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        let mut names = Vec::with_capacity(requests.len());
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            let flags = NLM_F_REQUEST | NLM_F_ACK | request.flags;
            append(&mut bytes, request.message, flags, self.sequence);
            names.push((request.what, request.tolerate));
        }
        let failed = |source| NetlinkError {
            what: "talk to the kernel".to_owned(),
            source,
        };
        self.send(&bytes).map_err(failed)?;
        let mut error = None;
        let mut open = names.len();
        while open > 0 {
            for message in self.receive::<M>().map_err(failed)? {
                let NetlinkPayload::Error(answer) = message.payload else {
                    continue;
                };
                let offset = message.header.sequence_number.wrapping_sub(first);
                let Some((what, tolerate)) =
                    usize::try_from(offset).ok().and_then(|i| names.get(i))
                else {
                    continue;
                };
                open = open.saturating_sub(1);
                let source = answer.to_io();
                let code = source.raw_os_error().unwrap_or(0);
                let fine = code == 0 || tolerate.iter().any(|e| *e as i32 == code);
                if !fine && error.is_none() {
                    error = Some(NetlinkError {
                        what: what.clone(),
                        source,
                    });
                }
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Sends an nftables transaction. The kernel carries out all of it or nothing.
    pub(crate) fn execute_batch(
        &mut self,
        what: String,
        batch: Vec<(NetfilterMessage, u16)>,
    ) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError {
            what: what.clone(),
            source,
        };
        let mut bytes = Vec::new();
        let mut open = 0_usize;
        let first = self.sequence.wrapping_add(1);
        for (message, flags) in batch {
            self.sequence = self.sequence.wrapping_add(1);
            // The marks of begin and end are not acknowledged.
            let mark = matches!(message.inner, NetfilterMessageInner::None(_));
            let ack = if mark { 0 } else { NLM_F_ACK };
            open += usize::from(!mark);
            append(
                &mut bytes,
                message,
                NLM_F_REQUEST | ack | flags,
                self.sequence,
            );
        }
        self.send(&bytes).map_err(failed)?;
        while open > 0 {
            for message in self.receive::<NetfilterMessage>().map_err(failed)? {
                let NetlinkPayload::Error(answer) = message.payload else {
                    continue;
                };
                if message.header.sequence_number.wrapping_sub(first) > i32::MAX.cast_unsigned() {
                    continue;
                }
                if answer.code.is_some() {
                    return Err(failed(answer.to_io()));
                }
                open = open.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Sends one query and collects every message of the answer.
    pub(crate) fn query<M>(&mut self, request: Request<M>) -> Result<Vec<M>, NetlinkError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + std::fmt::Debug,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let what = request.what;
        let failed = |source| NetlinkError {
            what: what.clone(),
            source,
        };
        let mut bytes = Vec::new();
        append(
            &mut bytes,
            request.message,
            NLM_F_REQUEST | NLM_F_ACK | request.flags,
            self.sequence,
        );
        self.send(&bytes).map_err(failed)?;
        let mut found = Vec::new();
        loop {
            for message in self.receive::<M>().map_err(failed)? {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => found.push(inner),
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(answer) if answer.code.is_none() => return Ok(found),
                    NetlinkPayload::Error(answer) => return Err(failed(answer.to_io())),
                    _ => {}
                }
            }
        }
    }

    /// Sends bytes that are a batch already.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.raw.send(bytes, 0) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(|_| ()),
            }
        }
    }

    fn receive<M>(&self) -> io::Result<Vec<NetlinkMessage<M>>>
    where
        M: NetlinkDeserializable + std::fmt::Debug,
    {
        let mut bytes = Vec::with_capacity(MAX_DATAGRAM);
        loop {
            match self.raw.recv(&mut bytes, 0) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => {
                    other?;
                    break;
                }
            }
        }
        let mut rest = bytes.as_slice();
        let mut messages = Vec::new();
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length < 16 || length > rest.len() {
                return Err(io::Error::other(
                    "the kernel sent a truncated netlink message",
                ));
            }
            let message =
                NetlinkMessage::<M>::deserialize(&rest[..length]).map_err(io::Error::other)?;
            messages.push(message);
            // Messages are aligned to four bytes.
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        Ok(messages)
    }
}

/// Appends a message to a batch.
fn append<M>(bytes: &mut Vec<u8>, message: M, flags: u16, sequence: u32)
where
    M: NetlinkSerializable + std::fmt::Debug,
{
    let mut packet = NetlinkMessage::new(
        netlink_packet_core::NetlinkHeader::default(),
        NetlinkPayload::InnerMessage(message),
    );
    packet.header.flags = flags;
    packet.header.sequence_number = sequence;
    packet.finalize();
    let start = bytes.len();
    bytes.resize(start + packet.buffer_len().next_multiple_of(4), 0);
    packet.serialize(&mut bytes[start..]);
}
