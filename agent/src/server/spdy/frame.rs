//! Frames: 8 bytes of head, then a control frame's fields or a stream's data.
//!
//! Pure: takes and gives bytes. Data frames have only a head here; their payload is passed on as it comes.

use bytes::{BufMut, BytesMut};

use super::headers::{Deflater, Headers, Inflater};

/// Longest control frame that is taken, bytes.
pub(in super::super) const MAX_CONTROL: usize = 64 << 10;

/// The protocol's version in control frames.
const VERSION: u16 = 3;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

const FLAG_FIN: u8 = 1;

/// The peer does not keep to the protocol; the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("SPDY protocol error: {0}")]
pub(in super::super) struct ProtocolError(pub(in super::super) &'static str);

/// Why a stream is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(in super::super) enum Reset {
    /// Something was wrong with the stream's opening.
    ProtocolError = 1,
    /// Data for a stream that does not exist.
    InvalidStream = 2,
    /// Too many streams.
    Refused = 3,
    /// Not wanted any more.
    Cancel = 5,
}

/// The first 8 bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Head {
    /// A control frame of this kind, with this many bytes to follow.
    Control { kind: u16, flags: u8, length: usize },
    /// Data of a stream.
    Data {
        stream: u32,
        fin: bool,
        length: usize,
    },
}

impl Head {
    /// Reads a head.
    pub(in super::super) fn parse(bytes: [u8; 8]) -> Result<Self, ProtocolError> {
        let [a, b, c, d, flags, e, f, g] = bytes;
        let first = u32::from_be_bytes([a, b, c, d]);
        let length = usize::from(e) << 16 | usize::from(f) << 8 | usize::from(g);
        if first & 0x8000_0000 == 0 {
            return Ok(Self::Data {
                stream: first,
                fin: flags & FLAG_FIN != 0,
                length,
            });
        }
        if u16::from_be_bytes([a & 0x7f, b]) != VERSION {
            return Err(ProtocolError("unsupported version"));
        }
        if length > MAX_CONTROL {
            return Err(ProtocolError("control frame too long"));
        }
        Ok(Self::Control {
            kind: u16::from_be_bytes([c, d]),
            flags,
            length,
        })
    }
}

/// A control frame of the peer, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Control {
    /// Opens a stream.
    Open {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    /// Answers to an opening.
    Reply { stream: u32, fin: bool },
    /// Ends a stream at once.
    Reset { stream: u32 },
    /// Wants the same frame back.
    Ping { id: u32 },
    /// No new streams.
    GoAway,
    /// More headers of a stream; only their end flag matters.
    More { stream: u32, fin: bool },
    /// Settings, windows, and what is unknown.
    Ignored,
}

/// Reads the peer's frames.
#[derive(Debug)]
pub(in super::super) struct Decoder(Inflater);

impl Decoder {
    pub(in super::super) fn new() -> Self {
        Self(Inflater::new())
    }

    /// Reads a control frame's fields.
    pub(in super::super) fn control(
        &mut self,
        kind: u16,
        flags: u8,
        payload: &[u8],
    ) -> Result<Control, ProtocolError> {
        let fin = flags & FLAG_FIN != 0;
        match kind {
            SYN_STREAM => {
                let (stream, rest) = stream_id(payload)?;
                // Behind the associated stream (4 bytes), priority and slot (2 bytes).
                let block = rest.get(6..).ok_or(SHORT)?;
                Ok(Control::Open {
                    stream,
                    fin,
                    headers: self.0.headers(block)?,
                })
            }
            SYN_REPLY => {
                let (stream, block) = stream_id(payload)?;
                self.0.headers(block)?;
                Ok(Control::Reply { stream, fin })
            }
            HEADERS => {
                let (stream, block) = stream_id(payload)?;
                self.0.headers(block)?;
                Ok(Control::More { stream, fin })
            }
            RST_STREAM => Ok(Control::Reset {
                stream: stream_id(payload)?.0,
            }),
            PING => {
                let id = payload.first_chunk().ok_or(SHORT)?;
                Ok(Control::Ping {
                    id: u32::from_be_bytes(*id),
                })
            }
            GOAWAY => Ok(Control::GoAway),
            SETTINGS | WINDOW_UPDATE => Ok(Control::Ignored),
            // Unknown kinds are to be ignored (section 2.2.1).
            _ => Ok(Control::Ignored),
        }
    }
}

const SHORT: ProtocolError = ProtocolError("short frame");

fn stream_id(payload: &[u8]) -> Result<(u32, &[u8]), ProtocolError> {
    let (id, rest) = payload.split_first_chunk().ok_or(SHORT)?;
    Ok((u32::from_be_bytes(*id) & 0x7fff_ffff, rest))
}

/// Writes our frames.
#[derive(Debug)]
pub(in super::super) struct Encoder(Deflater);

impl Encoder {
    pub(in super::super) fn new() -> Self {
        Self(Deflater::new())
    }

    /// Accepts a stream.
    pub(in super::super) fn reply(
        &mut self,
        stream: u32,
        out: &mut BytesMut,
    ) -> Result<(), ProtocolError> {
        let block = self.0.block(&[])?;
        control(out, SYN_REPLY, 0, 4 + block.len());
        out.put_u32(stream);
        out.put_slice(&block);
        Ok(())
    }

    /// Opens a stream, as a client does.
    #[cfg(test)]
    pub(in super::super) fn open(
        &mut self,
        stream: u32,
        headers: &Headers,
        fin: bool,
        out: &mut BytesMut,
    ) {
        let block = self.0.block(headers).unwrap();
        control(out, SYN_STREAM, u8::from(fin), 10 + block.len());
        out.put_u32(stream);
        out.put_slice(&[0; 6]);
        out.put_slice(&block);
    }
}

/// The head of a data frame; the payload is written behind it.
pub(in super::super) fn data(stream: u32, fin: bool, length: usize, out: &mut BytesMut) {
    out.put_u32(stream & 0x7fff_ffff);
    out.put_u8(if fin { FLAG_FIN } else { 0 });
    out.put_uint(length as u64 & 0x00ff_ffff, 3);
}

/// Ends a stream at once.
pub(in super::super) fn reset(stream: u32, reason: Reset, out: &mut BytesMut) {
    control(out, RST_STREAM, 0, 8);
    out.put_u32(stream);
    out.put_u32(reason as u32);
}

/// A ping, or the answer to one.
pub(in super::super) fn ping(id: u32, out: &mut BytesMut) {
    control(out, PING, 0, 4);
    out.put_u32(id);
}

/// No new streams: status 0 for a good end, 1 for a protocol error.
pub(in super::super) fn go_away(last_stream: u32, status: u32, out: &mut BytesMut) {
    control(out, GOAWAY, 0, 8);
    out.put_u32(last_stream);
    out.put_u32(status);
}

fn control(out: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u8(flags);
    out.put_uint(length as u64 & 0x00ff_ffff, 3);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(bytes: &[u8]) -> Head {
        Head::parse(*bytes.first_chunk().unwrap()).unwrap()
    }

    #[test]
    fn an_opening_is_read_as_it_was_written() {
        let headers = vec![("streamtype".to_owned(), "stdin".to_owned())];
        let mut wire = BytesMut::new();
        Encoder::new().open(5, &headers, true, &mut wire);
        let Head::Control {
            kind,
            flags,
            length,
        } = head(&wire)
        else {
            panic!("not control")
        };
        assert_eq!(length, wire.len() - 8);
        let control = Decoder::new().control(kind, flags, &wire[8..]).unwrap();
        assert_eq!(
            control,
            Control::Open {
                stream: 5,
                fin: true,
                headers
            }
        );
    }

    #[test]
    fn data_is_a_head_and_bytes() {
        let mut wire = BytesMut::new();
        data(7, true, 0x01_02_03, &mut wire);
        assert_eq!(
            head(&wire),
            Head::Data {
                stream: 7,
                fin: true,
                length: 0x01_02_03
            }
        );
    }

    #[test]
    fn a_long_control_frame_or_another_version_is_refused() {
        assert!(Head::parse([0x80, 3, 0, 1, 0, 1, 0, 1]).is_err());
        assert!(Head::parse([0x80, 2, 0, 1, 0, 0, 0, 1]).is_err());
    }

    proptest! {
        #[test]
        fn no_frames_make_the_decoder_panic(
            frames in proptest::collection::vec(
                (any::<[u8; 8]>(), 0_u16..12, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..80)), 0..8),
        ) {
            let mut decoder = Decoder::new();
            for (bytes, kind, flags, payload) in frames {
                let _ = Head::parse(bytes);
                let _ = decoder.control(kind, flags, &payload);
            }
        }
    }
}
