//! What systemd's answers mean, and its words. Pure.

use zbus::Variant;

use super::bus::SystemdError;
use super::properties::{Property, Value};

/// How a unit is, seen from what was to become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As was asked.
    Done,
    /// It was there already, and nothing was done.
    Exists,
    /// It is not there.
    Absent,
}

/// What is asked about which unit, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) verb: &'static str,
    pub(super) unit: &'a str,
}

/// A try that was not answered.
pub(super) enum Missed {
    /// The connection broke, or news was lost on it.
    Again,
    /// There is none.
    Absent(SystemdError),
    /// The error is systemd's answer.
    Error(SystemdError),
}

/// An error that systemd itself gave.
pub(super) fn is_answer(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::MethodError(..) => true,
        // These are of a bus on which systemd is not, for the moment.
        zbus::Error::FDO(error) => !matches!(
            **error,
            zbus::fdo::Error::ServiceUnknown(_)
                | zbus::fdo::Error::NameHasNoOwner(_)
                | zbus::fdo::Error::NoReply(_)
                | zbus::fdo::Error::Disconnected(_)
        ),
        _ => false,
    }
}

/// What an error is the answer to.
pub(super) fn answer(task: Task<'_>, error: zbus::Error) -> Result<Outcome, Missed> {
    if !is_answer(&error) {
        return match error {
            zbus::Error::InputOutput(_) | zbus::Error::FDO(_) => Err(Missed::Again),
            other => Err(refused(task, other)),
        };
    }
    let name = match &error {
        zbus::Error::MethodError(name, ..) => name.as_str(),
        _ => "",
    };
    match name.rsplit('.').next() {
        Some("UnitExists") => Ok(Outcome::Exists),
        Some("NoSuchUnit") => Ok(Outcome::Absent),
        _ => Err(refused(task, error)),
    }
}

pub(super) fn refused(task: Task<'_>, source: zbus::Error) -> Missed {
    Missed::Error(SystemdError::Refused {
        verb: task.verb,
        unit: task.unit.to_owned(),
        source,
    })
}

pub(super) fn finished(task: Task<'_>, result: String) -> Result<Outcome, Missed> {
    match result.as_str() {
        "done" | "skipped" => Ok(Outcome::Done),
        _ => Err(Missed::Error(SystemdError::Job {
            verb: task.verb,
            unit: task.unit.to_owned(),
            result,
        })),
    }
}

/// `252.38-1~deb12u1` → 252; 0 when it says nothing of the kind.
pub(super) fn version(text: &str) -> u32 {
    let text = text.trim_start_matches('v');
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().unwrap_or(0)
}

/// Properties as they go over the bus.
pub(super) fn encoded(properties: &[Property]) -> Vec<(&'static str, Variant<'static>)> {
    let one = |property: &Property| (property.name, variant(&property.value));
    properties.iter().map(one).collect()
}

fn variant(value: &Value) -> Variant<'static> {
    match value {
        Value::Bool(value) => Variant::from(*value),
        Value::Number(value) => Variant::from(*value),
        Value::Text(value) => Variant::from(value.clone()),
        Value::Bits(value) => Variant::from(value.clone()),
        Value::Pids(value) => Variant::from(value.clone()),
        Value::Pairs(value) => Variant::from(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_number_that_it_begins_with() {
        for (text, number) in [
            ("252.38-1~deb12u1", 252),
            ("v239", 239),
            ("257~rc1", 257),
            ("", 0),
            ("x", 0),
        ] {
            assert_eq!(version(text), number, "{text}");
        }
    }
}
