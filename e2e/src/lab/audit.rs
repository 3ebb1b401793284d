//! The API server's audit log: who asked for what, and what was refused.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

/// The policy: who asked for what, without bodies, once the answer is known.
pub(super) const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n\
    omitStages: [RequestReceived, ResponseStarted]\nrules:\n- level: Metadata\n";

/// The log of one lab.
#[derive(Debug)]
pub struct AuditLog {
    file: PathBuf,
}

/// A request in it.
#[derive(Debug, Clone)]
pub struct Request {
    /// Who asked.
    pub user: String,
    /// The verb, e.g. `patch`.
    pub verb: String,
    /// The path with its query.
    pub uri: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// The agent's name for itself.
    pub user_agent: String,
    /// Reasons that the server gives beside the status, e.g. `NamespaceTerminating`.
    pub causes: Vec<String>,
}

impl Request {
    /// What it asks for: the verb and the path without the query.
    pub fn what(&self) -> (&str, &str) {
        (&self.verb, self.uri.split('?').next().unwrap_or_default())
    }
}

impl AuditLog {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// Every request of a user so far.
    pub fn requests_of(&self, user: &str) -> Vec<Request> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let entries = text
            .lines()
            .filter_map(|l| serde_json::from_str::<Entry>(l).ok());
        let of_user = entries.filter(|e| e.user.username == user);
        of_user.map(Entry::into_request).collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    details: Details,
}

#[derive(Deserialize, Default)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
}

impl Entry {
    fn into_request(self) -> Request {
        let status = self.response_status;
        let (code, causes) = status.map_or((0, Vec::new()), |s| (s.code, s.details.causes));
        Request {
            user: self.user.username,
            verb: self.verb,
            uri: self.request_uri,
            code,
            user_agent: self.user_agent,
            causes: causes.into_iter().map(|cause| cause.reason).collect(),
        }
    }
}
