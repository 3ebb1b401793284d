//! Streams on a WebSocket: one message is one piece of one channel, its first byte says which.
//!
//! Channels: 0 stdin, 1 stdout, 2 stderr, 3 error, 4 resize; in v5 a message on channel 255 closes the channel
//! that its second byte names. In the base64 variants the channel is a digit and the rest is base64 text.

use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::status::Outcome;
use super::{AbortOnDrop, Activity, Gone, INPUT_QUEUE, Output, Resizes, Sink, Streams, Wanted};

/// The protocols of exec and attach, best first.
pub(in super::super) const PROTOCOLS: [&str; 5] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];

/// Longest message of a client; `kubectl cp` sends 32 KiB at a time.
pub(in super::super) const MAX_MESSAGE: usize = 4 << 20;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// What a subprotocol's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Protocol {
    /// Text messages in base64.
    base64: bool,
    /// The error channel carries a Status object.
    json_status: bool,
    /// There is a close signal.
    close: bool,
}

impl Protocol {
    fn new(name: &str) -> Self {
        Self {
            base64: name.contains("base64."),
            json_status: name.starts_with("v4.") || name.starts_with("v5."),
            close: name.starts_with("v5."),
        }
    }

    /// Wraps output.
    fn encode(self, channel: u8, data: &[u8]) -> Message {
        if self.base64 {
            let mut text = String::with_capacity(1 + data.len().div_ceil(3) * 4);
            text.push(char::from(b'0' + channel));
            BASE64.encode_string(data, &mut text);
            return Message::Text(text.into());
        }
        let mut message = BytesMut::with_capacity(1 + data.len());
        message.extend_from_slice(&[channel]);
        message.extend_from_slice(data);
        Message::Binary(message.freeze())
    }

    /// Unwraps input: channel and data. None for what carries nothing or is not understood.
    fn decode(self, message: Message) -> Option<(u8, Bytes)> {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::from(text),
            _ => return None,
        };
        let (&channel, data) = bytes.split_first()?;
        if self.base64 {
            return Some((channel.checked_sub(b'0')?, BASE64.decode(data).ok()?.into()));
        }
        Some((channel, bytes.slice(1..)))
    }
}

/// Sets the limits of a WebSocket and offers the protocols.
pub(in super::super) fn prepare(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .protocols(PROTOCOLS)
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
}

/// Makes streams of an open WebSocket, and tells the client that it is open.
pub(in super::super) async fn open(socket: WebSocket, wanted: Wanted) -> Result<Streams, Gone> {
    let name = socket
        .protocol()
        .and_then(|name| name.to_str().ok())
        .unwrap_or_default();
    let protocol = Protocol::new(name);
    let (sender, receiver) = socket.split();
    let activity = Activity::new();
    let gone = CancellationToken::new();
    let (stdin, stdin_end) = mpsc::channel(INPUT_QUEUE);
    let (resize, resize_end) = mpsc::channel(INPUT_QUEUE);
    let demux = Demux {
        protocol,
        stdin: wanted.stdin.then_some(stdin),
        resize: wanted.tty.then_some(resize),
        activity: activity.clone(),
    };
    let reader = {
        let gone = gone.clone();
        tokio::spawn(async move {
            let _guard = gone.drop_guard();
            demux.run(receiver).await;
        })
    };
    let sink = WebSocketSink {
        protocol,
        wanted,
        sender: Mutex::new(sender),
        activity: activity.clone(),
    };
    let streams = Streams {
        stdin: stdin_end,
        resizes: Resizes::new(resize_end),
        sink: Box::new(sink),
        gone,
        activity,
        reader: AbortOnDrop(reader.abort_handle()),
    };
    // Clients take an empty message on an output channel as the sign that the streams are there.
    let first = match wanted {
        Wanted { stdout: true, .. } => Output::Stdout,
        _ => Output::Stderr,
    };
    streams.sink.write(first, Bytes::new()).await?;
    Ok(streams)
}

/// Takes the client's messages apart.
struct Demux {
    protocol: Protocol,
    stdin: Option<mpsc::Sender<Bytes>>,
    resize: Option<mpsc::Sender<Bytes>>,
    activity: Arc<Activity>,
}

impl Demux {
    /// Until the client closes or breaks the connection.
    async fn run(mut self, mut messages: SplitStream<WebSocket>) {
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, Message::Close(_)) {
                // Input has ended, but the peer still has to get our answer to its close.
                self.stdin = None;
                continue;
            }
            self.activity.touch();
            if let Some((channel, data)) = self.protocol.decode(message) {
                self.dispatch(channel, data).await;
            }
        }
    }

    async fn dispatch(&mut self, channel: u8, data: Bytes) {
        match channel {
            CLOSE if self.protocol.close && data.first() == Some(&STDIN) => self.stdin = None,
            STDIN => pass(&mut self.stdin, data).await,
            RESIZE => pass(&mut self.resize, data).await,
            _ => {}
        }
    }
}

/// Queues data; forgets the queue when nobody takes from it any more.
async fn pass(queue: &mut Option<mpsc::Sender<Bytes>>, data: Bytes) {
    if let Some(sender) = queue
        && !data.is_empty()
        && sender.send(data).await.is_err()
    {
        *queue = None;
    }
}

/// The way to the client.
struct WebSocketSink {
    protocol: Protocol,
    wanted: Wanted,
    sender: Mutex<SplitSink<WebSocket, Message>>,
    activity: Arc<Activity>,
}

impl WebSocketSink {
    async fn send(&self, message: Message) -> Result<(), Gone> {
        let sent = self
            .sender
            .lock()
            .await
            .send(message)
            .await
            .map_err(|_| Gone);
        self.activity.touch();
        sent
    }
}

#[async_trait]
impl Sink for WebSocketSink {
    async fn write(&self, output: Output, data: Bytes) -> Result<(), Gone> {
        let (channel, wanted) = match output {
            Output::Stdout => (STDOUT, self.wanted.stdout),
            Output::Stderr => (STDERR, self.wanted.stderr),
        };
        if !wanted {
            return Ok(());
        }
        self.send(self.protocol.encode(channel, &data)).await
    }

    async fn finish(&self, outcome: &Outcome) -> Result<(), Gone> {
        let status = if self.protocol.json_status {
            Some(outcome.json())
        } else {
            outcome.text().map(String::into_bytes)
        };
        if let Some(status) = status {
            self.send(self.protocol.encode(ERROR, &status)).await?;
        }
        let close = CloseFrame {
            code: close_code::NORMAL,
            reason: "".into(),
        };
        self.send(Message::Close(Some(close))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_is_a_channel_and_its_data() {
        let binary = Protocol::new("v5.channel.k8s.io");
        let message = binary.encode(STDOUT, b"hi");
        assert_eq!(message, Message::Binary(Bytes::from_static(b"\x01hi")));
        assert_eq!(
            binary.decode(message),
            Some((STDOUT, Bytes::from_static(b"hi")))
        );

        let text = Protocol::new("v4.base64.channel.k8s.io");
        let message = text.encode(STDOUT, b"hi");
        assert_eq!(message, Message::Text("1aGk=".into()));
        assert_eq!(
            text.decode(message),
            Some((STDOUT, Bytes::from_static(b"hi")))
        );
    }

    #[test]
    fn names_say_what_a_protocol_can() {
        let can = |name| {
            let protocol = Protocol::new(name);
            (protocol.base64, protocol.json_status, protocol.close)
        };
        assert_eq!(can("v5.channel.k8s.io"), (false, true, true));
        assert_eq!(can("v4.channel.k8s.io"), (false, true, false));
        assert_eq!(can("v4.base64.channel.k8s.io"), (true, true, false));
        assert_eq!(can("channel.k8s.io"), (false, false, false));
        assert_eq!(can("base64.channel.k8s.io"), (true, false, false));
        assert_eq!(can(""), (false, false, false));
    }

    proptest! {
        #[test]
        fn no_message_makes_the_decoder_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            name in prop::sample::select(&PROTOCOLS[..]),
        ) {
            let protocol = Protocol::new(name);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let _ = protocol.decode(Message::Binary(bytes.into()));
            let _ = protocol.decode(Message::Text(text.into()));
        }
    }
}
