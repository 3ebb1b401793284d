//! Tests of the whole server: a real TLS client on one side, a fake runtime on the other.

mod auth;
mod client;
mod exec;
mod fixture;
mod follow;
mod forward;
mod handshake;
mod runtime;
mod spdy;
mod websocket;
mod zpages;
