//! A systemd that keeps names of units and does what it is told wrong.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use zbus::connection::Builder;
use zbus::message::Header;
use zbus::names::BusName;
use zbus::{Connection, Guid, Message, MessageStream, ObjectPath, OwnedVariant, Variant};

/// How the next start or stop goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The job is over before the reply is sent.
    SignalFirst,
    /// It is done, and the connection closed without a reply.
    Hangup,
    /// The job fails.
    Fails,
    /// There is no reply.
    Silence,
    /// There is no end of the job.
    LostSignal,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<String>,
    /// Each with whether it is active.
    units: BTreeMap<String, bool>,
    faults: VecDeque<Fault>,
}

#[derive(Debug)]
pub(super) struct Fake {
    dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    tasks: tokio::task::JoinHandle<()>,
}

type Properties = Vec<(String, OwnedVariant)>;

impl Fake {
    pub(super) fn start(faults: &[Fault]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("private")).unwrap();
        let state = Arc::new(Mutex::new(State {
            faults: faults.iter().copied().collect(),
            ..State::default()
        }));
        let tasks = tokio::spawn(accept(listener, state.clone()));
        Self { dir, state, tasks }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("private")
    }

    /// What changed or was to change units.
    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    pub(super) fn next(&self, fault: Fault) {
        self.state.lock().unwrap().faults.push_back(fault);
    }

    pub(super) fn keep_failed(&self, unit: &str) {
        let mut state = self.state.lock().unwrap();
        state.units.insert(unit.to_owned(), false);
    }

    /// Closes everything.
    pub(super) async fn leave(self) {
        self.tasks.abort();
        let _ = self.tasks.await;
    }
}

async fn accept(listener: UnixListener, state: Arc<Mutex<State>>) {
    let mut served = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        served.spawn(serve(stream.into_std().unwrap(), state.clone()));
    }
}

async fn serve(stream: std::os::unix::net::UnixStream, state: Arc<Mutex<State>>) {
    let builder = Builder::unix_stream(stream).server(Guid::generate()).p2p();
    let Ok(mut messages) = builder.build_message_stream().await else {
        return;
    };
    let connection = Connection::from(&messages);
    while let Some(Ok(message)) = messages.next().await {
        if message.message_type() == zbus::message::Type::MethodCall
            && !handle(&connection, &message, &state).await
        {
            break;
        }
    }
    drop::<MessageStream>(messages);
    let _ = connection.close().await;
}

/// Whether the connection stays.
async fn handle(connection: &Connection, message: &Message, state: &Mutex<State>) -> bool {
    let header = message.header();
    let method = header.member().unwrap().to_string();
    let body = message.body();
    match method.as_str() {
        "Subscribe" | "Ping" => connection.reply(&header, &()).await.unwrap(),
        "Get" => {
            let version = Variant::from("252.38-1~deb12u1");
            connection.reply(&header, &version).await.unwrap();
        }
        "StartTransientUnit" => {
            type Body = (String, String, Properties, Vec<(String, Properties)>);
            let (unit, _, properties, _): Body = body.deserialize().unwrap();
            note(state, &method, &unit, &properties);
            let exists = state.lock().unwrap().units.contains_key(&unit);
            if exists {
                return refuse(connection, &header, "UnitExists").await;
            }
            return job(connection, &header, state, &unit, true).await;
        }
        "StartUnit" | "StopUnit" => {
            let (unit, _): (String, String) = body.deserialize().unwrap();
            note(state, &method, &unit, &[]);
            let exists = state.lock().unwrap().units.contains_key(&unit);
            if !exists {
                return refuse(connection, &header, "NoSuchUnit").await;
            }
            return job(connection, &header, state, &unit, method == "StartUnit").await;
        }
        "SetUnitProperties" => {
            let (unit, _, properties): (String, bool, Properties) = body.deserialize().unwrap();
            note(state, &method, &unit, &properties);
            connection.reply(&header, &()).await.unwrap();
        }
        "AttachProcessesToUnit" => {
            let (unit, _, _): (String, String, Vec<u32>) = body.deserialize().unwrap();
            note(state, &method, &unit, &[]);
            let active = state.lock().unwrap().units.get(&unit) == Some(&true);
            if !active {
                return refuse(connection, &header, "UnitInactive").await;
            }
            connection.reply(&header, &()).await.unwrap();
        }
        "ResetFailedUnit" => {
            let (unit,): (String,) = body.deserialize().unwrap();
            note(state, &method, &unit, &[]);
            let is_kept = |name: &String, active: &mut bool| *name != unit || *active;
            state.lock().unwrap().units.retain(is_kept);
            connection.reply(&header, &()).await.unwrap();
        }
        other => panic!("unknown method {other}"),
    }
    true
}

fn note(state: &Mutex<State>, method: &str, unit: &str, properties: &[(String, OwnedVariant)]) {
    let mut line = format!("{method} {unit}");
    for (name, value) in properties {
        let value = match &**value {
            Variant::U64(number) => number.to_string(),
            Variant::Array(list) => {
                let pids = list.iter().filter_map(|one| u32::try_from(one).ok());
                format!("{:?}", pids.collect::<Vec<_>>())
            }
            other => other.to_string(),
        };
        line += &format!(" {name}={value}");
    }
    state.lock().unwrap().log.push(line);
}

async fn refuse(connection: &Connection, header: &Header<'_>, name: &str) -> bool {
    let name = format!("org.freedesktop.systemd1.{name}");
    let refused = connection.reply_error(header, name.as_str(), &"no");
    refused.await.unwrap();
    true
}

async fn job(
    connection: &Connection,
    header: &Header<'_>,
    state: &Mutex<State>,
    unit: &str,
    started: bool,
) -> bool {
    let fault = {
        let mut state = state.lock().unwrap();
        let fault = state.faults.pop_front();
        match (fault, started) {
            (Some(Fault::Fails), _) => {}
            (_, true) => drop(state.units.insert(unit.to_owned(), true)),
            (_, false) => drop(state.units.remove(unit)),
        }
        fault
    };
    let path = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
    let result = match fault {
        Some(Fault::Fails) => "failed",
        _ => "done",
    };
    let end = (7u32, &path, unit, result);
    let signal = async || {
        let to = None::<BusName<'_>>;
        let on = "org.freedesktop.systemd1.Manager";
        let place = "/org/freedesktop/systemd1";
        connection
            .emit_signal(to, place, on, "JobRemoved", &end)
            .await
            .unwrap();
    };
    match fault {
        Some(Fault::Hangup) => return false,
        Some(Fault::Silence) => return true,
        Some(Fault::SignalFirst) => {
            signal().await;
            connection.reply(header, &path).await.unwrap();
        }
        Some(Fault::LostSignal) => connection.reply(header, &path).await.unwrap(),
        Some(Fault::Fails) | None => {
            connection.reply(header, &path).await.unwrap();
            signal().await;
        }
    }
    true
}
