//! Messages on a byte stream: a little-endian `u32` length, then that many bytes of postcard.
//!
//! [`encode`] and [`Decoder`] are pure; [`read`] and [`write()`] are the blocking forms. The decoder takes
//! bytes in pieces of any size, so that the same one serves epoll, tokio and a test.

use std::io::{Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::protocol::MAX_FRAME;

/// Bytes of the length in front of a message.
pub const HEADER: usize = 4;

/// Consumed bytes are moved out of the buffer's front once they are as many as this; before, only an
/// index moves.
const COMPACT: usize = 64 << 10;

/// Why a frame cannot be written or read.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The message is longer than [`MAX_FRAME`], by its own length or by the announced one.
    #[error("frame of {0} bytes is longer than {MAX_FRAME}")]
    TooLong(usize),
    /// The bytes are not a message of the expected type.
    #[error("frame is not a valid message")]
    Malformed(#[source] postcard::Error),
    /// A valid message is followed by this many bytes inside its frame.
    #[error("frame has {0} bytes too many")]
    Trailing(usize),
    /// The stream failed, or ended inside a frame.
    #[error("stream failed")]
    Io(#[from] std::io::Error),
}

/// A message as a whole frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; HEADER]).map_err(FrameError::Malformed)?;
    let length = frame.len() - HEADER;
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME);
    let header = header.ok_or(FrameError::TooLong(length))?;
    frame[..HEADER].copy_from_slice(&header.to_le_bytes());
    Ok(frame)
}

/// Cuts a byte stream into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes from the stream, in order.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start >= COMPACT {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message; none when more bytes are needed. After an error the stream is of no use.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let pending = &self.buffer[self.start..];
        let Some((header, rest)) = pending.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = decode(body)?;
        self.start += HEADER + length;
        if self.start == self.buffer.len() {
            // Frames can be large and the decoder lives long: give the memory back.
            self.buffer = Vec::new();
            self.start = 0;
        }
        Ok(Some(message))
    }

    /// Bytes that wait for the rest of their frame.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }
}

/// A message from the bytes behind a header; every one of them must belong to it.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    let (message, rest) = postcard::take_from_bytes(body).map_err(FrameError::Malformed)?;
    if !rest.is_empty() {
        return Err(FrameError::Trailing(rest.len()));
    }
    Ok(message)
}

/// Writes one message.
pub fn write<T: Serialize>(stream: &mut impl Write, message: &T) -> Result<(), FrameError> {
    Ok(stream.write_all(&encode(message)?)?)
}

/// Reads one message and not a byte more; none at the end of the stream between two frames.
pub fn read<T: DeserializeOwned>(stream: &mut impl Read) -> Result<Option<T>, FrameError> {
    let mut header = [0; HEADER];
    let mut got = 0;
    while got < HEADER {
        match stream.read(&mut header[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            Ok(n) => got += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME {
        return Err(FrameError::TooLong(length));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    decode(&body).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Exit, FailureKind, Reply, Request};
    use proptest::prelude::*;

    fn replies() -> impl Strategy<Value = Reply> {
        prop_oneof![
            Just(Reply::Ok),
            any::<i32>().prop_map(|pid| Reply::Started { pid }),
            any::<i32>().prop_map(|code| Reply::ExecExited { code }),
            ".*".prop_map(|message| Reply::Failed {
                kind: FailureKind::System,
                message
            }),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_any_fragmentation(
            replies in prop::collection::vec(replies(), 0..8),
            step in 1usize..40,
        ) {
            let stream: Vec<u8> = replies.iter().flat_map(|r| encode(r).unwrap()).collect();
            let mut decoder = Decoder::new();
            let mut got = Vec::new();
            for piece in stream.chunks(step) {
                decoder.feed(piece);
                while let Some(reply) = decoder.next_message::<Reply>().unwrap() {
                    got.push(reply);
                }
            }
            prop_assert_eq!(got, replies);
            prop_assert_eq!(decoder.pending(), 0);
        }

        #[test]
        fn the_decoder_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let mut decoder = Decoder::new();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next_message::<Request>() {}
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
            let _ = decode::<Event>(&bytes);
            let _ = read::<Request>(&mut bytes.as_slice());
        }

        #[test]
        fn damaged_frames_never_panic(at in 0usize..200, with in any::<u8>()) {
            let event = Event::ContainerExited { exit: Exit {
                container: "c".repeat(64), code: 1, signal: 9, oom_killed: true, finished_at_ns: i64::MAX,
            }};
            let mut frame = encode(&event).unwrap();
            let at = at % frame.len();
            frame[at] = with;
            let mut decoder = Decoder::new();
            decoder.feed(&frame);
            let _ = decoder.next_message::<Event>();
        }
    }

    #[test]
    fn a_frame_longer_than_the_limit_is_refused_by_its_header() {
        let mut decoder = Decoder::new();
        let length = u32::try_from(MAX_FRAME + 1).unwrap();
        decoder.feed(&length.to_le_bytes());
        assert!(matches!(
            decoder.next_message::<Request>(),
            Err(FrameError::TooLong(_))
        ));
        let long = Reply::Failed {
            kind: FailureKind::System,
            message: "x".repeat(MAX_FRAME),
        };
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn bytes_behind_a_message_inside_its_frame_are_refused() {
        let mut frame = encode(&Reply::Ok).unwrap();
        frame.push(0);
        frame[0] += 1;
        let mut decoder = Decoder::new();
        decoder.feed(&frame);
        assert!(matches!(
            decoder.next_message::<Reply>(),
            Err(FrameError::Trailing(1))
        ));
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_an_error_and_between_frames_the_end() {
        let frame = encode(&Reply::Started { pid: 7 }).unwrap();
        assert!(matches!(read::<Reply>(&mut [].as_slice()), Ok(None)));
        for cut in 1..frame.len() {
            assert!(matches!(
                read::<Reply>(&mut &frame[..cut]),
                Err(FrameError::Io(_))
            ));
        }
    }
}
