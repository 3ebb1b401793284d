//! The shim's state and its loop: one thread that waits for clients, signals and output, and never for
//! anything else but the kernel's own work.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hanok_shim::protocol::{Event, FIRST_VERSION, Reply, Request, ShimState, VERSION};
use hanok_shim::sys::memory::give_back;
use hanok_shim::sys::signal::SignalFd;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::attach::Attached;
use crate::connection::{Connection, Phase};
use crate::container::{self, Container};
use crate::exec::{Exec, Nursery};
use crate::failure::{Failure, Result};
use crate::host::Host;
use crate::poller::{Interest, Poller, Ready, Token};
use crate::relay::Relay;
use crate::shutdown::Shutdown;
use crate::start_container::Home;
use crate::start_sandbox::Sandbox;
use crate::users::Users;

/// Most clients at once; more can only be a fault of the caller, and descriptors are needed elsewhere.
const MAX_CONNECTIONS: usize = 256;

/// How long nothing happens before the shim takes a rest. A burst of requests finds it warm, and so do probes of every
/// second.
const QUIET: Duration = Duration::from_secs(4);

/// Everything that a shim holds.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) poller: Poller,
    pub(crate) host: Host,
    pub(crate) sandbox: Option<Sandbox>,
    /// The pod's user namespace, when it has one.
    pub(crate) users: Option<Users>,
    /// The pod's mount namespace, once there was a container.
    pub(crate) home: Option<Home>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) containers: BTreeMap<u64, Container>,
    pub(crate) execs: BTreeMap<u64, Exec>,
    pub(crate) nursery: Nursery,
    pub(crate) relays: BTreeMap<u64, Relay>,
    pub(crate) attached: BTreeMap<u64, Attached>,
    pub(crate) shutdown: Option<Shutdown>,
    listener: OwnedFd,
    signals: SignalFd,
    last_key: u64,
    /// Whether memory was used that a shim at rest has no use for.
    untidy: bool,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This is the answer.
    Done(Reply),
    /// The answer comes later.
    Later,
}

impl Shim {
    /// `listener` is the bound socket; SIGCHLD is already blocked and comes by `signals`.
    pub(crate) fn new(
        host: Host,
        listener: OwnedFd,
        signals: SignalFd,
    ) -> rustix::io::Result<Self> {
        let poller = Poller::new()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        poller.add(&listener, Token::Listener, Interest::READ)?;
        poller.add(&signals, Token::Signals, Interest::READ)?;
        Ok(Self {
            poller,
            host,
            sandbox: None,
            users: None,
            home: None,
            connections: BTreeMap::new(),
            containers: BTreeMap::new(),
            execs: BTreeMap::new(),
            nursery: Nursery::default(),
            relays: BTreeMap::new(),
            attached: BTreeMap::new(),
            shutdown: None,
            listener,
            signals,
            last_key: 0,
            untidy: true,
        })
    }

    /// Serves until [`Request::Shutdown`] is done.
    pub(crate) fn run(&mut self) -> rustix::io::Result<()> {
        loop {
            let events = self.poller.wait(self.timeout())?;
            if events.is_empty() && self.shutdown.is_none() {
                self.rest();
            }
            for ready in events {
                self.dispatch(ready);
            }
            if self.is_shut_down() {
                return Ok(());
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        match &self.shutdown {
            Some(shutdown) => Some(shutdown.remaining()),
            None => self.untidy.then_some(QUIET),
        }
    }

    /// Once after some work; then it sleeps until something happens.
    fn rest(&mut self) {
        self.rest_nursery();
        give_back();
        self.untidy = false;
    }

    /// Not a part of the loop, whose frame is there for good.
    #[inline(never)]
    fn dispatch(&mut self, ready: Ready) {
        match ready.token {
            Token::Listener => self.accept(),
            Token::Signals => {
                self.untidy = true;
                // Which signals came does not matter: only SIGCHLD is asked for.
                let _ = self.signals.drain();
                self.reap();
            }
            Token::Connection(key) => self.serve(key, ready),
            Token::ContainerSetup(key) => self.container_setup_progress(key),
            Token::Cgroups(key) => self.cgroups_progress(key),
            Token::ExecSetup(key) => self.exec_setup_progress(key),
            Token::Output(key, stream) => self.copy_output(key, stream),
            Token::Relay(key, end) => self.relay_progress(key, end, ready),
            Token::Attached(key, stream) => self.attached_progress(key, stream, ready),
        }
    }

    /// A key that was never used before.
    pub(crate) fn new_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // One at a time: the listener is level-triggered, and a burst must not starve the output.
        let Ok(socket) = accept_with(&self.listener, flags) else {
            return;
        };
        if self.connections.len() >= MAX_CONNECTIONS || !is_own_user(&socket) {
            return;
        }
        let key = self.new_key();
        if self
            .poller
            .add(&socket, Token::Connection(key), Interest::READ)
            .is_ok()
        {
            self.connections.insert(key, Connection::new(socket));
        }
    }

    fn serve(&mut self, key: u64, ready: Ready) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let mut alive = true;
        if ready.writable {
            alive = connection.flush().is_ok();
        }
        let wanted = connection.interest().read;
        if alive && ready.readable && wanted {
            alive = connection.fill().is_ok();
        } else if ready.hangup {
            alive = false;
        }
        if alive {
            alive = self.answer_requests(key);
        }
        if alive {
            self.watch(key, ready.readable && !wanted)
        } else {
            self.drop_connection(key)
        }
        self.join_sandbox();
    }

    /// Works on the requests that are there, until one has to wait. False when the connection is broken.
    fn answer_requests(&mut self, key: u64) -> bool {
        while let Some(connection) = self.connections.get_mut(&key) {
            match connection.next_request() {
                Err(_) => return false,
                Ok(None) => return true,
                Ok(Some((request, fds))) => {
                    self.untidy = true;
                    let greeted = connection.phase != Phase::New;
                    connection.phase = Phase::Busy;
                    match self.handle(key, request, fds, greeted) {
                        Ok(Outcome::Done(reply)) => self.reply(key, &reply),
                        Ok(Outcome::Later) => return true,
                        Err(failure) => self.reply(key, &failure.into()),
                    }
                }
            }
        }
        true
    }

    fn handle(
        &mut self,
        key: u64,
        request: Request,
        fds: Vec<OwnedFd>,
        greeted: bool,
    ) -> Result<Outcome> {
        let hello = matches!(request, Request::Hello { .. });
        if !greeted && !hello {
            return Err(Failure::invalid(
                "the first request of a connection is Hello",
            ));
        }
        if self.shutdown.is_some() && !matches!(request, Request::State | Request::Hello { .. }) {
            return Err(Failure::invalid("the shim is shutting down"));
        }
        match request {
            Request::Hello { version } if (FIRST_VERSION..=VERSION).contains(&version) => {
                Ok(Outcome::Done(Reply::Ok))
            }
            Request::Hello { version } => Err(Failure::invalid(format!(
                "protocol version {version} is none of {FIRST_VERSION} to {VERSION}, which this shim speaks"
            ))),
            Request::StartSandbox(spec) => self.start_sandbox(&spec),
            Request::StartContainer(spec) => self.start_container(key, *spec, None, None),
            Request::StartLabelled { spec, label } => {
                self.start_container(key, *spec, Some(&label), None)
            }
            Request::StartAhead { spec, label } => {
                self.start_ahead(key, *spec, label.as_deref(), fds)
            }
            Request::Exec(spec) => self.exec(key, *spec, fds),
            Request::Run(spec) => self.run_to_its_end(key, *spec, fds),
            Request::Kill { id, signal, all } => self.kill(&id, signal, all),
            Request::Resize { id, rows, cols } => self.resize(&id, rows, cols),
            Request::State => Ok(Outcome::Done(Reply::State(self.state()))),
            Request::ReopenLog { container } => self.reopen_log(&container),
            Request::Attach { container, stdin } => self.attach(&container, stdin, fds),
            Request::Delete { container } => self.delete(&container),
            Request::Subscribe => Ok(self.subscribe(key)),
            Request::Shutdown => Ok(self.start_shutdown(key)),
            Request::MakeUserNamespace(spec) => self.make_user_namespace(&spec),
        }
    }

    /// Answers the request that a connection waits for. A client that is gone gets nothing.
    pub(crate) fn reply(&mut self, key: u64, reply: &Reply) {
        // An exec's connection stays busy between its two replies.
        let more_to_come = matches!(reply, Reply::Started { .. })
            && self.execs.values().any(|exec| exec.connection == key);
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if connection.phase == Phase::Busy && !more_to_come {
            connection.phase = Phase::Idle;
        }
        if connection.send(reply).is_err() {
            self.drop_connection(key);
        }
    }

    /// As [`Shim::reply`], for an answer that was put off: also takes what the client sent meanwhile.
    pub(crate) fn reply_later(&mut self, key: u64, reply: &Reply) {
        self.reply(key, reply);
        if self.answer_requests(key) {
            self.watch(key, false)
        } else {
            self.drop_connection(key)
        }
    }

    /// Has the poller wake for what a connection waits for; it `woke` us for bytes that nobody wants yet.
    fn watch(&mut self, key: u64, woke: bool) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let Some(interest) = connection.rewatch(woke) else {
            return;
        };
        let connection = &*connection;
        if self
            .poller
            .modify(connection, Token::Connection(key), interest)
            .is_err()
        {
            self.drop_connection(key);
        }
    }

    pub(crate) fn drop_connection(&mut self, key: u64) {
        if let Some(connection) = self.connections.remove(&key) {
            self.poller.remove(&connection);
        }
    }

    fn subscribe(&mut self, key: u64) -> Outcome {
        // The reply first, then nothing but events.
        self.reply(key, &Reply::Ok);
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.phase = Phase::Subscribed;
        }
        Outcome::Later
    }

    /// Rings every subscriber.
    pub(crate) fn publish(&mut self, event: &Event) {
        let subscribed =
            |(key, c): (&u64, &Connection)| (c.phase == Phase::Subscribed).then_some(*key);
        let keys: Vec<u64> = self.connections.iter().filter_map(subscribed).collect();
        for key in keys {
            let Some(connection) = self.connections.get_mut(&key) else {
                continue;
            };
            if connection.send(event).is_ok() {
                self.watch(key, false);
            } else {
                self.drop_connection(key);
            }
        }
    }

    fn state(&self) -> ShimState {
        let started = |c: &&Container| !matches!(c.phase, container::Phase::Starting(_));
        ShimState {
            pause_pid: self.sandbox.as_ref().map_or(0, Sandbox::pid),
            containers: self
                .containers
                .values()
                .filter(started)
                .map(Container::state)
                .collect(),
        }
    }

    /// The container with this id.
    pub(crate) fn container_key(&self, id: &str) -> Result<u64> {
        let found = self.containers.iter().find(|(_, c)| c.id == id);
        found
            .map(|(key, _)| *key)
            .ok_or_else(|| Failure::not_found("container", id))
    }

    /// The exec with this id.
    pub(crate) fn exec_key(&self, id: &str) -> Option<u64> {
        self.execs
            .iter()
            .find(|(_, e)| e.id == id)
            .map(|(key, _)| *key)
    }

    fn reopen_log(&mut self, id: &str) -> Result<Outcome> {
        use crate::failure::Doing;
        let key = self.container_key(id)?;
        if let Some(log) = self
            .containers
            .get_mut(&key)
            .and_then(|c| c.io.log.as_mut())
        {
            log.reopen()
                .doing(|| format!("reopen the log of container {id}"))?;
        }
        Ok(Outcome::Done(Reply::Ok))
    }
}

/// Whether the peer of a unix socket runs as the user that the shim runs as. A vsock has no users: it
/// reaches the host alone.
fn is_own_user(socket: impl AsFd) -> bool {
    match rustix::net::sockopt::socket_peercred(socket) {
        Ok(peer) => peer.uid == rustix::process::geteuid(),
        Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT) => true,
        Err(_) => false,
    }
}
