//! The numbers of a pod's fields, of Kubernetes 1.37, read from `fields.txt` when the first pod is written.

use std::collections::HashMap;
use std::sync::LazyLock;

/// As `localapi fields` prints it (`e2e/localapi`), which a story compares.
const TABLE: &str = include_str!("fields.txt");

static MESSAGES: LazyLock<HashMap<&str, Vec<Field>>> = LazyLock::new(|| {
    // Every line has been read by a test.
    parse(TABLE).expect("the table of fields is whole")
});

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    /// Its name in JSON.
    pub(super) json: &'static str,
    pub(super) number: u32,
    pub(super) shape: Shape,
    pub(super) kind: Kind,
}

/// How often a value stands in a field, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Once.
    One,
    /// Once, and in JSON its fields stand among those of the message around it.
    Inline,
    /// In a list.
    Many,
    /// In a map from strings.
    Map,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Flag,
    Message(&'static str),
    /// A string in JSON, seconds here.
    Time,
    /// A string in JSON.
    Quantity,
    /// A number or a string in JSON.
    IntOrString,
    /// Any JSON, as its text.
    Fields,
}

/// The fields of a message, in the order of their numbers; none of one that is not in the table.
pub(super) fn of(message: &str) -> &'static [Field] {
    MESSAGES.get(message).map(Vec::as_slice).unwrap_or_default()
}

/// Whether a field of that name stands among those of the message.
pub(super) fn has(message: &str, json: &str) -> bool {
    of(message).iter().any(|field| match field.kind {
        Kind::Message(inner) if field.shape == Shape::Inline => has(inner, json),
        _ => field.json == json,
    })
}

fn parse(table: &'static str) -> Option<HashMap<&'static str, Vec<Field>>> {
    let mut messages: HashMap<&str, Vec<Field>> = HashMap::new();
    let mut message = None;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let Some(field) = line.strip_prefix(' ') else {
            message = Some(messages.entry(line).or_default());
            continue;
        };
        message.as_mut()?.push(parse_field(field)?);
    }
    Some(messages)
}

fn parse_field(line: &'static str) -> Option<Field> {
    let mut words = line.split(' ');
    let (json, number, kind) = (words.next()?, words.next()?, words.next()?);
    let (shape, kind) = match (kind.strip_prefix("[]"), kind.strip_prefix("{}")) {
        (Some(kind), _) => (Shape::Many, kind),
        (_, Some(kind)) => (Shape::Map, kind),
        _ if json == "..." => (Shape::Inline, kind),
        _ => (Shape::One, kind),
    };
    let kind = match kind {
        "string" => Kind::Text,
        "int" => Kind::Integer,
        "bool" => Kind::Flag,
        "Time" => Kind::Time,
        "Quantity" => Kind::Quantity,
        "IntOrString" => Kind::IntOrString,
        "FieldsV1" => Kind::Fields,
        message => Kind::Message(message),
    };
    Some(Field {
        json,
        number: number.parse().ok()?,
        shape,
        kind,
    })
}

#[cfg(test)]
pub(super) fn all() -> &'static HashMap<&'static str, Vec<Field>> {
    &MESSAGES
}
