//! SPDY/3.1, the server's half, as far as Kubernetes' streams use it.
//!
//! API servers that do not pass a WebSocket through open SPDY to the node, and port forwarding is SPDY in either
//! case (then carried in WebSocket messages). [`frame`] is the codec, pure; [`connection`] moves frames. There is
//! no flow control: the peers' implementation knows none, so the transport's own back-pressure is what there is.
//! Specification: draft-mbelshe-httpbis-spdy-00 with the changes of SPDY/3.1.

pub(super) mod connection;
mod dictionary;
pub(super) mod frame;
mod headers;

pub(super) use connection::{Connection, Stream};
