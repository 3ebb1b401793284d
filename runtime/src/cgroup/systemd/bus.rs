//! The way to systemd: the system's bus. (On its own socket, `/run/systemd/private`, it gives a sender that is no unique
//! name, which our library refuses to read.)
//!
//! One connection, made when it is needed and again after it broke: systemd drops it when it executes itself anew
//! (`daemon-reexec`). A call whose reply is lost that way is made again, and what it had done already shows in the
//! answer to the second one. Everything ends at a deadline; nobody waits for ever for a systemd that does not answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use serde::Serialize;
use tokio::sync::{Mutex, broadcast};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, DynamicType, Message, MessageStream, OwnedObjectPath, Variant};

use super::answer::{Missed, Outcome, Task, answer, finished, is_answer, refused, version};

const DESTINATION: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// How long one change of a unit may take. It takes milliseconds; a system that is being reloaded, seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// Pause before systemd is looked for again.
const ABSENT: Duration = Duration::from_millis(50);

/// Jobs that a slow listener may lag behind; then it asks again.
const BACKLOG: usize = 1024;

/// What systemd did not do.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// Nobody answers.
    #[error("systemd cannot be reached by {by}")]
    Unreachable {
        /// Its socket or bus.
        by: String,
        /// Why not.
        #[source]
        source: zbus::Error,
    },
    /// It did not answer in time, or went away again and again.
    #[error("systemd did not {verb} {unit} within {} s", patience.as_secs())]
    Late {
        /// "start", "stop", "change", ...
        verb: &'static str,
        /// The unit.
        unit: String,
        /// The deadline.
        patience: Duration,
    },
    /// It answered with an error.
    #[error("systemd refuses to {verb} {unit}")]
    Refused {
        /// "start", "stop", "change", ...
        verb: &'static str,
        /// The unit.
        unit: String,
        /// Its words.
        #[source]
        source: zbus::Error,
    },
    /// It took the job, and the job did not come to its end.
    #[error("systemd could not {verb} {unit}: the job ended as {result:?}")]
    Job {
        /// "start" or "stop".
        verb: &'static str,
        /// The unit.
        unit: String,
        /// Its word: failed, timeout, dependency, canceled, ...
        result: String,
    },
    /// The unit is there already, and somebody else's.
    #[error("systemd has a unit {unit} already")]
    Taken {
        /// The unit.
        unit: String,
    },
    /// The process that keeps a scope until the container is in it cannot be started.
    #[error("cannot start {program}")]
    Holder {
        /// The program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// Where systemd is.
#[derive(Debug, Clone)]
pub(super) enum Address {
    /// A socket with nobody in between.
    #[cfg(test)]
    Socket(PathBuf),
    /// The system's bus.
    System,
}

/// systemd, by one connection.
#[derive(Debug)]
pub(super) struct Bus {
    addresses: Vec<Address>,
    patience: Duration,
    version: AtomicU32,
    link: Mutex<Option<Arc<Link>>>,
}

/// A connection with what is heard from it.
#[derive(Debug)]
struct Link {
    connection: Connection,
    ended: broadcast::Sender<JobEnd>,
    listener: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// A job that is over.
#[derive(Debug, Clone)]
struct JobEnd {
    job: OwnedObjectPath,
    result: String,
}

/// When a call is over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answered {
    /// The reply names a job, and that has ended.
    Job,
    /// There is a reply.
    Reply,
    /// There is a reply, and systemd has acted on it as well: it does so afterwards, but before it reads the next
    /// question, which is sent together with the first.
    Deed,
}

impl Bus {
    pub(super) fn new() -> Self {
        Self::at(vec![Address::System], PATIENCE)
    }

    pub(super) fn at(addresses: Vec<Address>, patience: Duration) -> Self {
        Self {
            addresses,
            patience,
            version: AtomicU32::new(0),
            link: Mutex::new(None),
        }
    }

    /// Connects, once: that nobody is there is told and not waited for.
    pub(super) async fn connect(&self) -> Result<(), SystemdError> {
        let late = || SystemdError::Late {
            verb: "answer",
            unit: "hanok".to_owned(),
            patience: self.patience,
        };
        let connected = tokio::time::timeout(self.patience, self.link()).await;
        connected.map_err(|_| late())?.map(drop)
    }

    /// systemd's version, as it was when it was asked last.
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// Calls a method about a unit. Tries until there is an answer, with a new connection when the one there is
    /// breaks.
    pub(super) async fn request<B: Serialize + DynamicType + Sync>(
        &self,
        task: Task<'_>,
        answered: Answered,
        method: &str,
        body: &B,
    ) -> Result<Outcome, SystemdError> {
        let deadline = Instant::now() + self.patience;
        let mut absent = None;
        loop {
            let attempt = timeout_at(deadline, self.attempt(task, answered, method, body));
            match attempt.await {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(Missed::Error(error))) => return Err(error),
                Ok(Err(Missed::Again)) => absent = None,
                Ok(Err(Missed::Absent(error))) => absent = Some(error),
                Err(_) => break,
            }
            if timeout_at(deadline, sleep(ABSENT)).await.is_err() {
                break;
            }
        }
        Err(absent.unwrap_or_else(|| SystemdError::Late {
            verb: task.verb,
            unit: task.unit.to_owned(),
            patience: self.patience,
        }))
    }

    async fn attempt<B: Serialize + DynamicType + Sync>(
        &self,
        task: Task<'_>,
        answered: Answered,
        method: &str,
        body: &B,
    ) -> Result<Outcome, Missed> {
        let link = self.link().await.map_err(Missed::Absent)?;
        let outcome = match answered {
            Answered::Job => link.job(task, method, body).await,
            Answered::Reply => match link.call(method, body).await {
                Ok(_) => Ok(Outcome::Done),
                Err(error) => answer(task, error),
            },
            Answered::Deed => {
                let (called, _) = tokio::join!(biased; link.call(method, body), link.ping());
                match called {
                    Ok(_) => Ok(Outcome::Done),
                    Err(error) => answer(task, error),
                }
            }
        };
        if matches!(outcome, Err(Missed::Again)) {
            self.forget(&link).await;
        }
        outcome
    }

    async fn link(&self) -> Result<Arc<Link>, SystemdError> {
        let mut current = self.link.lock().await;
        if let Some(link) = current.as_ref().filter(|link| !link.connection.is_closed()) {
            return Ok(link.clone());
        }
        let mut first = None;
        for address in &self.addresses {
            match Link::open(address).await {
                Ok((link, version)) => {
                    self.version.store(version, Ordering::Relaxed);
                    let link = Arc::new(link);
                    *current = Some(link.clone());
                    return Ok(link);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| SystemdError::Unreachable {
            by: "nothing".to_owned(),
            source: zbus::Error::Unsupported,
        }))
    }

    async fn forget(&self, broken: &Arc<Link>) {
        let mut current = self.link.lock().await;
        if current
            .as_ref()
            .is_some_and(|link| Arc::ptr_eq(link, broken))
        {
            *current = None;
        }
    }
}

impl Link {
    /// Connects, and asks for the version.
    async fn open(address: &Address) -> Result<(Self, u32), SystemdError> {
        let (by, builder) = match address {
            #[cfg(test)]
            Address::Socket(path) => {
                let path = path.display().to_string();
                let builder = Builder::address(format!("unix:path={path}").as_str()).p2p();
                (path, builder)
            }
            Address::System => ("the system's bus".to_owned(), Builder::system()),
        };
        let opened = async {
            let connection = builder.build().await?;
            let (ended, _) = broadcast::channel(BACKLOG);
            let stream = listen(&connection).await?;
            let listener = tokio::spawn(hear(stream, ended.clone()));
            let link = Self {
                connection,
                ended,
                listener,
            };
            // Without the subscription, it tells nobody on a bus of jobs. Who has it already is refused.
            let (subscribed, version) =
                tokio::join!(link.call("Subscribe", &()), link.ask_version());
            if let Err(error) = subscribed
                && !is_answer(&error)
            {
                return Err(error);
            }
            Ok((link, version?))
        };
        opened
            .await
            .map_err(|source| SystemdError::Unreachable { by, source })
    }

    /// A method that answers with a job, and the job's end.
    async fn job<B: Serialize + DynamicType + Sync>(
        &self,
        task: Task<'_>,
        method: &str,
        body: &B,
    ) -> Result<Outcome, Missed> {
        // Before the call: the job may be over before its answer is read.
        let mut ended = self.ended.subscribe();
        let reply = match self.call(method, body).await {
            Ok(reply) => reply,
            Err(error) => return answer(task, error),
        };
        let job = reply.body().deserialize::<OwnedObjectPath>();
        let job = job.map_err(|source| refused(task, source))?;
        loop {
            tokio::select! {
                biased;
                end = ended.recv() => match end {
                    Ok(end) if end.job == job => return finished(task, end.result),
                    Ok(_) => {}
                    Err(_) => return Err(Missed::Again),
                },
                () = self.connection.closed() => return Err(Missed::Again),
            }
        }
    }

    async fn call<B: Serialize + DynamicType + Sync>(
        &self,
        method: &str,
        body: &B,
    ) -> zbus::Result<Message> {
        let (to, on) = (Some(DESTINATION), Some(MANAGER));
        self.connection
            .call_method(to, PATH, on, method, body)
            .await
    }

    async fn ping(&self) -> zbus::Result<Message> {
        let on = Some("org.freedesktop.DBus.Peer");
        self.connection
            .call_method(Some(DESTINATION), PATH, on, "Ping", &())
            .await
    }

    async fn ask_version(&self) -> zbus::Result<u32> {
        let on = Some("org.freedesktop.DBus.Properties");
        let which = (MANAGER, "Version");
        let reply = self
            .connection
            .call_method(Some(DESTINATION), PATH, on, "Get", &which)
            .await?;
        let body = reply.body();
        let value: Variant<'_> = body.deserialize()?;
        let Variant::Str(text) = value else {
            return Err(zbus::Error::IncorrectType);
        };
        Ok(version(&text))
    }
}

/// Only the ends of jobs from a bus; without one everything comes anyway.
async fn listen(connection: &Connection) -> zbus::Result<MessageStream> {
    if !connection.is_bus() {
        return Ok(MessageStream::from(connection));
    }
    let rule = zbus::MatchRule::builder()
        .msg_type(Type::Signal)
        .interface(MANAGER)
        .member("JobRemoved")
        .build()?;
    MessageStream::for_match_rule(rule, connection, None).await
}

async fn hear(mut stream: MessageStream, ended: broadcast::Sender<JobEnd>) {
    while let Some(message) = stream.next().await {
        let Ok(message) = message else { continue };
        let header = message.header();
        let is_end = header.message_type() == Type::Signal
            && header
                .member()
                .is_some_and(|member| member.as_str() == "JobRemoved");
        if !is_end {
            continue;
        }
        type Body = (u32, OwnedObjectPath, String, String);
        if let Ok((_, job, _, result)) = message.body().deserialize::<Body>() {
            // Nobody may be waiting.
            let _ = ended.send(JobEnd { job, result });
        }
    }
}
