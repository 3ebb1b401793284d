//! A connection to a port of a pod, made inside the pod's network namespace.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::api::{Connection, Error, Result, SandboxId};
use crate::service::Core;

/// How long a connection inside one network namespace may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to 127.0.0.1, then to ::1.
pub(crate) async fn connect(core: &Core, id: &SandboxId, port: u16) -> Result<Box<dyn Connection>> {
    let sandbox = core.registry.sandbox(id).ok_or_else(|| Error::NotFound {
        kind: "sandbox",
        id: id.0.clone(),
    })?;
    let netns = sandbox.record().netns;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // A thread of its own, which ends: one that has entered another network is good for nothing else.
    let thread = std::thread::Builder::new().name("pod-connect".into());
    let spawned = thread.spawn(move || {
        let _ = sender.send(connect_inside(netns.as_deref(), port));
    });
    let connected = match spawned {
        Ok(_) => receiver
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::Other.into())),
        Err(error) => Err(error),
    };
    let stream = connected.and_then(|stream| {
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    });
    match stream {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(Error::Internal(format!(
            "cannot connect to port {port} of sandbox {id}: {error}"
        ))),
    }
}

fn connect_inside(netns: Option<&Path>, port: u16) -> io::Result<TcpStream> {
    if let Some(netns) = netns {
        let netns = File::open(netns)?;
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    let addresses = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ];
    TcpStream::connect_timeout(&addresses[0], PATIENCE)
        .or_else(|first| TcpStream::connect_timeout(&addresses[1], PATIENCE).map_err(|_| first))
}
