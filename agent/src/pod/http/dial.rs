//! Connections of probes and hooks, and the words for what goes wrong with them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpStream, lookup_host};

/// Connects. A connection that is dropped leaves nothing in TIME-WAIT: thousands of probes a minute would fill the
/// node's table and take its ports.
pub(in crate::pod) async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => match lookup_host((host, port)).await {
            Ok(found) => found.collect(),
            Err(_) => return Err(format!("dial tcp: lookup {host}: no such host")),
        },
    };
    let mut last = format!("dial tcp: lookup {host}: no such host");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // It would only be closed the slow way.
                let _ = stream.set_zero_linger();
                return Ok(stream);
            }
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

/// Both ends of a connection.
pub(super) fn peers(stream: &TcpStream) -> String {
    let text = |address: io::Result<SocketAddr>| {
        address.map_or_else(|_| "?".to_owned(), |address| address.to_string())
    };
    format!(
        "{}->{}",
        text(stream.local_addr()),
        text(stream.peer_addr())
    )
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
        let error = dial("127.0.0.1", port).await.expect_err("nobody listens");
        assert_eq!(
            error,
            format!("dial tcp 127.0.0.1:{port}: connect: connection refused")
        );
    }
}
