//! One attempt of a probe, and the words for how it ended.

use std::time::Duration;

use hanok_runtime::api::{ContainerId, RuntimeService};
use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::back_off::go_duration;
use super::super::command::{self, Ended, Look};
use super::super::http::dial::Opening;
use super::super::http::{self, Get, dial};
use super::grpc;
use crate::env::expand::{Variables, expand_words};
use hanok_runtime::service::chain;

/// As the API's documentation has it.
const USER_AGENT: &str = "kube-probe/1.37";

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// It passed.
    Passed,
    /// It passed, and somebody should look.
    Warning(String),
    /// It failed.
    Failed(String),
    /// It could not be made, which says nothing of the container.
    Unknown(String),
    /// Its answer broke off, which is called a failure and counts for nothing either.
    BrokenOff(String),
}

/// What a probe asks, made ready once for all of its attempts.
#[derive(Debug)]
pub(super) enum Question {
    /// Program and arguments, run in the container.
    Exec(Vec<String>),
    /// A request to it.
    Http(Box<Get>),
    /// A connection to a host and port.
    Tcp(String, u16),
    /// The health of a service at a host and port.
    Grpc(String, u16, String),
    /// Nothing that can be asked, for this reason.
    Impossible(String),
}

impl Question {
    /// The question of a probe of a container in the pod that has this address.
    pub(super) fn new(probe: &Probe, container: &Container, ip: &str) -> Self {
        let ready = if let Some(exec) = &probe.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            expanded(command, container).map(Self::Exec)
        } else if let Some(action) = &probe.http_get {
            Get::new(action, container, ip, USER_AGENT).map(|get| Self::Http(Box::new(get)))
        } else if let Some(action) = &probe.tcp_socket {
            let host = action.host.as_deref().filter(|host| !host.is_empty());
            let host = host.unwrap_or(ip).to_owned();
            http::port(&action.port, container).map(|port| Self::Tcp(host, port))
        } else if let Some(action) = &probe.grpc {
            let service = action.service.clone().unwrap_or_default();
            u16::try_from(action.port)
                .map(|port| Self::Grpc(ip.to_owned(), port, service))
                .map_err(|_| format!("invalid port number: {}", action.port))
        } else {
            Err(format!("missing probe handler for {}", container.name))
        };
        ready.unwrap_or_else(Self::Impossible)
    }

    /// Asks once.
    pub(super) async fn ask(
        &self,
        runtime: &dyn RuntimeService,
        id: &ContainerId,
        limit: Duration,
        look: Look,
    ) -> Answer {
        match self {
            Self::Exec(command) => exec_answer(runtime, id, command, limit, look).await,
            Self::Http(get) => http_answer(get, limit).await,
            Self::Tcp(host, port) => tcp_answer(host, *port, limit).await,
            Self::Grpc(host, port, service) => {
                answer(grpc::check(host, *port, service, USER_AGENT, limit).await)
            }
            Self::Impossible(cause) => Answer::Unknown(cause.clone()),
        }
    }
}

fn answer(result: Result<(), String>) -> Answer {
    match result {
        Ok(()) => Answer::Passed,
        Err(cause) => Answer::Failed(cause),
    }
}

/// The command with the container's variables in it, as they are written.
fn expanded(command: &[String], container: &Container) -> Result<Vec<String>, String> {
    let envs = container.env.iter().flatten();
    let envs = envs.map(|env| (env.name.as_str(), env.value.as_deref().unwrap_or_default()));
    let variables = Variables::of(command, envs);
    expand_words("the command", command, &variables).map_err(|error| error.to_string())
}

async fn exec_answer(
    runtime: &dyn RuntimeService,
    id: &ContainerId,
    command: &[String],
    limit: Duration,
    look: Look,
) -> Answer {
    match command::run(runtime, command.to_vec(), id, Some(limit), look).await {
        Ok(Ended::Exit { code: 0, .. }) => Answer::Passed,
        Ok(Ended::Exit { output, .. }) => Answer::Failed(output),
        Ok(Ended::TimedOut) => {
            let (text, limit) = (command.join(" "), go_duration(limit));
            Answer::Failed(format!(
                "command timed out: {text:?} timed out after {limit}"
            ))
        }
        Err(error) => Answer::Unknown(chain(&error)),
    }
}

async fn http_answer(get: &Get, limit: Duration) -> Answer {
    let deadline = Instant::now() + limit;
    let head = match timeout_at(deadline, get.send()).await {
        Ok(Ok(head)) => head,
        Ok(Err(cause)) => return Answer::Failed(cause),
        Err(_) => return Answer::Failed(get.timed_out()),
    };
    let status = head.status();
    let body = match timeout_at(deadline, head.body()).await {
        Ok(Ok(body)) => body,
        Ok(Err(cause)) => return Answer::BrokenOff(cause),
        Err(_) => {
            let cause = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
            return Answer::BrokenOff(cause.to_owned());
        }
    };
    match status {
        200..300 => Answer::Passed,
        300..400 => Answer::Warning(format!("Probe terminated redirects, Response body: {body}")),
        code => Answer::Failed(format!("HTTP probe failed with statuscode: {code}")),
    }
}

async fn tcp_answer(host: &str, port: u16, limit: Duration) -> Answer {
    let connected = timeout(limit, dial::dial(host, port, Opening::Waits)).await;
    answer(match connected {
        Ok(connected) => connected.map(drop),
        Err(_) => Err(format!(
            "dial tcp {}: i/o timeout",
            dial::address(host, port)
        )),
    })
}

#[cfg(test)]
mod tests;
