//! One attempt of a probe, and the words for how it ended.

use std::time::Duration;

use hanok_runtime::api::{ContainerId, RuntimeService};
use k8s_openapi::api::core::v1::{Container, Probe, TCPSocketAction};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::back_off::go_duration;
use super::super::command::{self, Ended};
use super::super::http::{self, Get, dial};
use super::grpc;
use crate::env::expand::expand;
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
}

/// What is probed.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) runtime: &'a dyn RuntimeService,
    pub(super) container: &'a Container,
    pub(super) id: &'a ContainerId,
    /// The pod's address.
    pub(super) ip: &'a str,
}

/// Probes once.
pub(super) async fn attempt(target: Target<'_>, probe: &Probe, limit: Duration) -> Answer {
    if let Some(exec) = &probe.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        return exec_answer(target, command, limit).await;
    }
    if let Some(action) = &probe.http_get {
        return match Get::new(action, target.container, target.ip, USER_AGENT) {
            Ok(get) => http_answer(&get, limit).await,
            Err(cause) => Answer::Unknown(cause),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        return tcp_answer(target, action, limit).await;
    }
    if let Some(action) = &probe.grpc {
        let service = action.service.as_deref().unwrap_or_default();
        let Ok(port) = u16::try_from(action.port) else {
            return Answer::Unknown(format!("invalid port number: {}", action.port));
        };
        return answer(grpc::check(target.ip, port, service, USER_AGENT, limit).await);
    }
    let name = &target.container.name;
    Answer::Unknown(format!("missing probe handler for {name}"))
}

fn answer(result: Result<(), String>) -> Answer {
    match result {
        Ok(()) => Answer::Passed,
        Err(cause) => Answer::Failed(cause),
    }
}

async fn exec_answer(target: Target<'_>, command: &[String], limit: Duration) -> Answer {
    let lookup = |name: &str| {
        let mut envs = target.container.env.iter().flatten();
        let found = envs.rfind(|env| env.name == name)?;
        Some(found.value.as_deref().unwrap_or_default())
    };
    let command: Vec<String> = command
        .iter()
        .map(|word| expand(word, lookup).into_owned())
        .collect();
    let text = command.join(" ");
    match command::run(target.runtime, command, target.id, Some(limit)).await {
        Ok(Ended::Exit { code: 0, .. }) => Answer::Passed,
        Ok(Ended::Exit { output, .. }) => Answer::Failed(output),
        Ok(Ended::TimedOut) => {
            let limit = go_duration(limit);
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
        Ok(Err(cause)) => return Answer::Unknown(cause),
        Err(_) => {
            let cause = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
            return Answer::Unknown(cause.to_owned());
        }
    };
    match status {
        200..300 => Answer::Passed,
        300..400 => Answer::Warning(format!("Probe terminated redirects, Response body: {body}")),
        code => Answer::Failed(format!("HTTP probe failed with statuscode: {code}")),
    }
}

async fn tcp_answer(target: Target<'_>, action: &TCPSocketAction, limit: Duration) -> Answer {
    let host = action.host.as_deref().filter(|host| !host.is_empty());
    let host = host.unwrap_or(target.ip);
    let port = match http::port(&action.port, target.container) {
        Ok(port) => port,
        Err(cause) => return Answer::Unknown(cause),
    };
    let connected = timeout(limit, dial::dial(host, port)).await;
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
