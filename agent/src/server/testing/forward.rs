//! Port forwarding, in both of its forms.

use std::io;

use bytes::Bytes;
use futures::{SinkExt, StreamExt, TryStreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::client::Client;
use super::fixture::{Fixture, eventually};
use super::spdy::{SpdyClient, upgrade};

const PATH: &str = "/portForward/default/web";

async fn connect<T: AsyncRead + AsyncWrite + Unpin>(
    client: &mut SpdyClient<T>,
    request: &str,
    port: &str,
) -> (u32, u32) {
    let headers = |kind| [("streamtype", kind), ("port", port), ("requestid", request)];
    let error = client.open(&headers("error")).await;
    (client.open(&headers("data")).await, error)
}

/// Two connections, one refused and one that echoes, with half closes.
async fn forwards<T: AsyncRead + AsyncWrite + Unpin>(mut client: SpdyClient<T>) {
    let (refused, error) = connect(&mut client, "0", "1").await;
    client
        .until(|client| client.ended.contains_key(&error))
        .await;
    assert!(client.ended[&refused]);
    // Clients would take text here for the end of the session.
    assert!(client.received[&error].is_empty());

    let (data, error) = connect(&mut client, "1", "7").await;
    client.send(data, b"hello", false).await;
    client
        .until(|client| client.received.contains_key(&data))
        .await;
    client.send(data, b" world", true).await;
    client
        .until(|client| client.ended.contains_key(&data) && client.ended.contains_key(&error))
        .await;
    assert_eq!(client.received[&data], b"hello world");
    assert!(client.received[&error].is_empty());
}

#[tokio::test]
async fn a_refused_connection_does_not_end_the_others() {
    let fixture = Fixture::start();
    forwards(upgrade(&fixture, PATH, "portforward.k8s.io").await).await;
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn spdy_goes_through_a_websocket_too() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let path = "/portForward/default/web/uid-1";
    let tunnel = "SPDY/3.1+portforward.k8s.io";
    let (socket, headers) = client.websocket(path, tunnel).await.unwrap();
    assert_eq!(headers["sec-websocket-protocol"], tunnel);
    let (sender, receiver) = socket.split();
    let bytes = receiver
        .map_err(io::Error::other)
        .map_ok(Message::into_data);
    let sink = sender
        .sink_map_err(io::Error::other)
        .with(async |bytes: Bytes| Ok::<Message, io::Error>(Message::Binary(bytes)));
    let io = tokio::io::join(
        StreamReader::new(Box::pin(bytes)),
        SinkWriter::new(CopyToBytes::new(Box::pin(sink))),
    );
    forwards(SpdyClient::new(io)).await;
    eventually("nothing is left", || fixture.is_idle()).await;
    assert!(client.websocket(PATH, "v4.channel.k8s.io").await.is_err());
}

#[tokio::test]
async fn a_connection_that_nobody_reads_is_dropped_with_its_stream() {
    let fixture = Fixture::start();
    let mut client = upgrade(&fixture, PATH, "portforward.k8s.io").await;
    for request in 0..50 {
        let (data, error) = connect(&mut client, &request.to_string(), "7").await;
        client.send(data, b"x", false).await;
        let mut wire = bytes::BytesMut::new();
        let reason = super::super::spdy::frame::Reset::Cancel;
        super::super::spdy::frame::reset(data, reason, &mut wire);
        client.write(&wire).await;
        client
            .until(|client| client.ended.contains_key(&error))
            .await;
    }
    let (data, _) = connect(&mut client, "last", "7").await;
    client.send(data, b"still here", true).await;
    client
        .until(|client| client.ended.contains_key(&data))
        .await;
    assert_eq!(client.received[&data], b"still here");
}

#[tokio::test]
async fn streams_without_sense_are_reset() {
    let fixture = Fixture::start();
    let mut client = upgrade(&fixture, PATH, "portforward.k8s.io").await;
    for headers in [
        [("streamtype", "data"), ("port", "0"), ("requestid", "1")],
        [
            ("streamtype", "data"),
            ("port", "70000"),
            ("requestid", "1"),
        ],
        [("streamtype", "other"), ("port", "7"), ("requestid", "1")],
    ] {
        let stream = client.open(&headers).await;
        client
            .until(|client| client.ended.get(&stream) == Some(&true))
            .await;
    }
}
