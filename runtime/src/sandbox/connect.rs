//! A connection to a port of a pod, made inside the pod's network namespace.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use hanok_cni::netns;

use crate::api::{Connection, Error, Result, SandboxId};
use crate::service::{Core, chain};

/// How long a connection inside one network namespace may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to 127.0.0.1, then to ::1.
pub(crate) async fn connect(core: &Core, id: &SandboxId, port: u16) -> Result<Box<dyn Connection>> {
    let sandbox = core.registry.sandbox(id).ok_or_else(|| Error::NotFound {
        kind: "sandbox",
        id: id.0.clone(),
    })?;
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Error::Internal(format!(
            "cannot connect to port {port} of sandbox {id}: {}",
            chain(error)
        ))
    };
    let connected = match sandbox.record().netns {
        Some(netns) => netns::run_in(&netns, move || connect_here(port))
            .await
            .map_err(|error| failed(&error))?,
        None => tokio::task::spawn_blocking(move || connect_here(port))
            .await
            .map_err(|error| failed(&error))?,
    };
    let stream = connected.and_then(|stream| {
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    });
    match stream {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(failed(&error)),
    }
}

/// In the calling thread's network namespace.
fn connect_here(port: u16) -> io::Result<TcpStream> {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&v4, PATIENCE)
        .or_else(|first| TcpStream::connect_timeout(&v6, PATIENCE).map_err(|_| first))
}
