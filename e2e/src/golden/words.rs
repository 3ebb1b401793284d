//! Events and statuses as lines without what is different each time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Event;
use serde_json::{Map, Value};

/// What a pod's node says of it, a line each.
pub(super) type Lines = BTreeSet<String>;

/// Begins the name of the volume that every pod is given; the rest is chance.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// What a kubelet's runtime puts before the cause: the names of its own parts, which a hanok node has not.
const LAYERS: [&str; 4] = [
    "failed to create RUNTIME task: failed to create shim task: OCI runtime create failed: runc create failed: \
     unable to start container process: ",
    "failed to exec in container: failed to start exec \"ID\": OCI runtime exec failed: exec failed: unable to start \
     container process: ",
    "failed to create RUNTIME container: ",
    "failed to generate container \"ID\" spec: failed to generate spec opts: ",
];

/// Fields that are not compared. A kubelet tells of stop signals only by a runtime that does, and of a pod's resources
/// what its cgroup has at the moment.
const LEFT_OUT: [&str; 3] = ["stopSignal", "allocatedResources", "resources"];

/// Leaves out what is a node's own: names and paths, and the words that stand for them.
#[derive(Debug, Default)]
pub(super) struct Plain {
    /// Longer ones first.
    texts: Vec<(String, &'static str)>,
    node: String,
}

impl Plain {
    /// For what this node says.
    pub(super) fn new(node: &str, texts: Vec<(String, &'static str)>) -> Self {
        Self {
            texts,
            node: node.to_owned(),
        }
    }

    /// The text without ids, digests, times, addresses and the node's own.
    pub(super) fn text(&self, text: &str) -> String {
        if is_time(text) {
            return "TIME".to_owned();
        }
        let mut text = text.to_owned();
        if let Some((before, rest)) = text.split_once("rpc error: code = ")
            && let Some((_, after)) = rest.split_once(" desc = ")
        {
            text = format!("{before}{after}");
        }
        for (own, word) in &self.texts {
            text = text.replace(own.as_str(), word);
        }
        let mut plain = String::with_capacity(text.len());
        let mut rest = without_uids(&text);
        while !rest.is_empty() {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let after = rest.split_off(end);
            plain.push_str(&self.word(&rest, &plain));
            let mut after = after.chars();
            plain.extend(after.next());
            rest = after.as_str().to_owned();
        }
        for layer in LAYERS {
            plain = plain.replace(layer, "");
        }
        plain.replace('\n', "\\n")
    }

    /// A word after what stands before it.
    fn word(&self, word: &str, before: &str) -> String {
        let bare = word.trim_end_matches('.');
        let end = &word[bare.len()..];
        let counted = ["used: ", "capacity: ", "size: ", "pid ", "is the max, "];
        let stands_for = match () {
            () if bare.starts_with(TOKEN_VOLUME) => "kube-api-access",
            () if bare == "containerd" || bare == "hanok" => "RUNTIME",
            () if bare == self.node => "NODE",
            () if bare.len() >= 32 && bare.chars().all(|c| c.is_ascii_hexdigit()) => "ID",
            () if bare.contains('.') && bare.parse::<IpAddr>().is_ok() => "IP",
            () if is_duration(bare) => "DURATION",
            () if is_number(bare) && counted.iter().any(|text| before.ends_with(text)) => "NUMBER",
            () => bare,
        };
        format!("{stands_for}{end}")
    }

    /// Everything in a value.
    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|value| self.value(value)),
            Value::Object(map) => map.values_mut().for_each(|value| self.value(value)),
            _ => {}
        }
    }

    /// An event in a line.
    pub(super) fn event(&self, event: &Event) -> String {
        let text = |text: &Option<String>| self.text(text.as_deref().unwrap_or_default());
        let field = &event.involved_object.field_path;
        let field = field.as_ref().map(|field| format!(" {field}"));
        format!(
            "event {} {}{}: {}",
            text(&event.type_),
            text(&event.reason),
            field.unwrap_or_default(),
            text(&event.message)
        )
    }

    /// A pod's status in lines.
    pub(super) fn status(&self, status: &Value) -> Lines {
        let mut status = status.as_object().cloned().unwrap_or_default();
        let mut lines = Lines::new();
        let phase = format!("phase {}", take(&mut status, "phase"));
        lines.insert(self.with_reason(&phase, &mut status));
        for condition in list(&mut status, "conditions") {
            lines.insert(self.condition(condition));
        }
        let kinds = [
            ("initContainerStatuses", "init"),
            ("containerStatuses", "container"),
            ("ephemeralContainerStatuses", "ephemeral"),
        ];
        for (field, kind) in kinds {
            for container in list(&mut status, field) {
                lines.extend(self.container(kind, container));
            }
        }
        for field in LEFT_OUT {
            status.remove(field);
        }
        lines.insert(self.rest("status", status));
        lines
    }

    /// What the annotations say of where a pod comes from, in lines.
    pub(super) fn source<'a>(
        &self,
        annotations: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Lines {
        let of_source = annotations.filter(|(key, _)| key.starts_with("kubernetes.io/config."));
        of_source
            .map(|(key, value)| format!("annotation {key} {}", self.text(value)))
            .collect()
    }

    fn condition(&self, mut condition: Map<String, Value>) -> String {
        let (kind, status) = (take(&mut condition, "type"), take(&mut condition, "status"));
        let seen = condition.get("observedGeneration").unwrap_or(&Value::Null);
        let start = format!("condition {kind} {status} of {seen}");
        self.with_reason(&start, &mut condition)
    }

    fn container(&self, kind: &str, mut status: Map<String, Value>) -> Lines {
        let start = format!("{kind} {}", take(&mut status, "name"));
        status.remove(LEFT_OUT[0]);
        let state = self.state(status.remove("state"));
        let last = self.state(status.remove("lastState"));
        // Who a process was is read from the process, which may be gone too soon; a kubelet tells what was asked for.
        if !state.starts_with("running") {
            status.remove("user");
        }
        // How often it has been restarted depends on when one looks.
        let restarts = status.remove("restartCount").and_then(|n| n.as_i64());
        let restarts = match restarts.unwrap_or_default() {
            0 => "never",
            _ => "again",
        };
        let mut lines = Lines::from([
            format!("{start} {state}"),
            format!("{start} started {restarts}"),
            self.rest(&start, status),
        ]);
        if !last.is_empty() {
            lines.insert(format!("{start} before {last}"));
        }
        lines
    }

    fn state(&self, state: Option<Value>) -> String {
        let Some(Value::Object(state)) = state else {
            return String::new();
        };
        let Some((kind, Value::Object(mut fields))) = state.into_iter().next() else {
            return String::new();
        };
        let code = fields.remove("exitCode").map(|code| format!(" {code}"));
        let signal = fields.remove("signal").map(|n| format!(" signal {n}"));
        let start = format!(
            "{kind}{}{}",
            code.unwrap_or_default(),
            signal.unwrap_or_default()
        );
        let mut line = self.with_reason(&start, &mut fields);
        let never = |value: &Value| value.is_null() || value == "1970-01-01T00:00:00Z";
        if kind == "terminated" && fields.get("startedAt").is_none_or(never) {
            line.push_str(" (never ran)");
        }
        line
    }

    /// `START REASON: MESSAGE`, as much of it as there is.
    fn with_reason(&self, start: &str, fields: &mut Map<String, Value>) -> String {
        let reason = self.text(&take(fields, "reason"));
        let message = self.text(&take(fields, "message"));
        let mut line = start.to_owned();
        if !reason.is_empty() {
            line.push(' ');
            line.push_str(&reason);
        }
        if !message.is_empty() {
            line.push_str(": ");
            line.push_str(&message);
        }
        line
    }

    /// The fields that have no words of their own.
    fn rest(&self, start: &str, fields: Map<String, Value>) -> String {
        let mut value = Value::Object(fields);
        self.value(&mut value);
        let Value::Object(fields) = value else {
            return start.to_owned();
        };
        let sorted: BTreeMap<_, _> = fields.into_iter().collect();
        let text = serde_json::to_string(&sorted).unwrap_or_default();
        format!("{start} has {text}")
    }
}

fn take(fields: &mut Map<String, Value>, name: &str) -> String {
    match fields.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

fn list(fields: &mut Map<String, Value>, name: &str) -> Vec<Map<String, Value>> {
    let items = match fields.remove(name) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    let objects = items.into_iter().map(|item| match item {
        Value::Object(object) => object,
        _ => Map::new(),
    });
    objects.collect()
}

/// What words are made of.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "._-".contains(c)
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.parse::<jiff::Timestamp>().is_ok()
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
}

/// `1.5s`, `20ms`, `1m20s`.
fn is_duration(word: &str) -> bool {
    // `5m` is an amount of CPU.
    if !word.ends_with('s') {
        return false;
    }
    let units = ["h", "m", "s", "ms", "µs", "ns"];
    let mut rest = word;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let end = digits.find(|c: char| c.is_ascii_digit());
        let (unit, after) = digits.split_at(end.unwrap_or(digits.len()));
        if digits.len() == rest.len() || !units.contains(&unit) {
            return false;
        }
        rest = after;
    }
    !word.is_empty()
}

/// Every UID replaced, whatever it is a part of.
fn without_uids(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match rest.get(..36) {
            Some(uid) if is_uid(uid) => {
                out.push_str("UID");
                rest = &rest[36..];
            }
            _ => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

fn is_uid(text: &str) -> bool {
    let dash = |at: usize| [8, 13, 18, 23].contains(&at);
    let mut bytes = text.bytes().enumerate();
    bytes.all(|(at, byte)| match dash(at) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_different_each_time_is_left_out() {
        let id = "0123456789abcdef".repeat(4);
        let texts = vec![("golden-n1".to_owned(), "NAMESPACE")];
        let plain = Plain::new("n1", texts);
        let table = [
            (
                format!("sandbox \"{id}\" is gone"),
                "sandbox \"ID\" is gone",
            ),
            (
                "in 1.25s (1m2s including".to_owned(),
                "in DURATION (DURATION including",
            ),
            (
                "pod=p_golden-n1(11111111-2222-3333-4444-555555555555)".to_owned(),
                "pod=p_NAMESPACE(UID)",
            ),
            (
                "dial tcp 10.1.2.3:80: refused by n1.".to_owned(),
                "dial tcp IP:80: refused by NODE.",
            ),
            (
                "requested: 5, used: 12, capacity: 2000".to_owned(),
                "requested: 5, used: NUMBER, capacity: NUMBER",
            ),
            ("2026-01-01T00:00:00Z".to_owned(), "TIME"),
            ("a\nb, 3 s of a.b".to_owned(), "a\\nb, 3 s of a.b"),
        ];
        for (text, want) in table {
            assert_eq!(plain.text(&text), want);
        }
    }

    #[test]
    fn a_status_is_a_line_for_each_thing_it_says() {
        let status = serde_json::json!({
            "phase": "Running",
            "qosClass": "BestEffort",
            "conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "m", "observedGeneration": 1}],
            "containerStatuses": [{
                "name": "c", "ready": false, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z"}},
            }],
        });
        let lines = Plain::default().status(&status);
        let want = [
            "condition Ready False of 1 R: m",
            "container c before terminated 1 Error",
            "container c has {\"ready\":false}",
            "container c started again",
            "container c waiting CrashLoopBackOff: back-off DURATION",
            "phase Running",
            "status has {\"qosClass\":\"BestEffort\"}",
        ];
        assert_eq!(lines.into_iter().collect::<Vec<_>>(), want);
    }
}
