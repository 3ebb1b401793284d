//! Connections of probes and hooks, and the words for what goes wrong with them.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::lookup_host;

use super::wire::Wire;

pub(in crate::pod) use super::wire::Opening;

/// Connects; gives the address of the other end too.
pub(in crate::pod) async fn dial(
    host: &str,
    port: u16,
    opening: Opening,
) -> Result<(Wire, SocketAddr), String> {
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => match lookup_host((host, port)).await {
            Ok(found) => found.collect(),
            Err(_) => return Err(format!("dial tcp: lookup {host}: no such host")),
        },
    };
    let mut last = format!("dial tcp: lookup {host}: no such host");
    for address in addresses {
        match Wire::connect(address, opening).await {
            Ok(wire) => return Ok((wire, address)),
            Err(error) => last = format!("dial tcp {address}: connect: {}", errno(&error)),
        }
    }
    Err(last)
}

/// `HOST:PORT`, with brackets where they are needed.
pub(in crate::pod) fn address(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Both ends of a connection, as errors show them.
#[derive(Debug, Clone, Copy)]
pub(in crate::pod) struct Peers(Option<SocketAddr>, SocketAddr);

impl Peers {
    /// Those of a connection to `address`.
    pub(super) fn new(wire: &Wire, address: SocketAddr) -> Self {
        Self(wire.local_address(), address)
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(local) => write!(f, "{local}->{}", self.1),
            None => write!(f, "?->{}", self.1),
        }
    }
}

/// The system's word for an error, in small letters: `connection refused`.
pub(super) fn errno(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_read_in_small_letters() {
        let of = |number| errno(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc_refused()), "connection refused");
        assert_eq!(address("::1", 80), "[::1]:80");
        assert_eq!(address("10.1.0.5", 80), "10.1.0.5:80");
    }

    fn libc_refused() -> i32 {
        rustix::io::Errno::CONNREFUSED.raw_os_error()
    }

    #[tokio::test]
    async fn a_closed_port_refuses_in_the_known_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let error = dial("127.0.0.1", port, Opening::Waits)
            .await
            .expect_err("nobody listens");
        assert_eq!(
            error,
            format!("dial tcp 127.0.0.1:{port}: connect: connection refused")
        );
    }
}
