//! Tells systemd how far the agent is, where its unit is of `Type=notify`. See sd_notify(3).

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The agent takes pods and answers.
pub(super) const READY: &str = "READY=1";
/// It is about to end.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Says it, if anybody listens. Nothing depends on it, so a failure is no more than a line in the log.
pub(super) fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = send(socket.as_bytes(), state);
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %socket.display(), "cannot tell systemd: {state}");
    }
}

/// A name that begins with `@` is an abstract one.
fn send(socket: &[u8], state: &str) -> std::io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_by_path_or_by_name_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("hanok-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(path.as_os_str().as_bytes(), READY).unwrap();
        send(format!("@{name}").as_bytes(), STOPPING).unwrap();
        for (socket, want) in [(by_path, READY), (by_name, STOPPING)] {
            let mut heard = [0; 64];
            let length = socket.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], want.as_bytes());
        }
        assert!(send(b"/nowhere/notify", READY).is_err());
    }
}
