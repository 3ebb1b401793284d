//! A pod in Kubernetes' protobuf, `k8s.io/api/core/v1/generated.proto`, made of its JSON by a table of field numbers.
//!
//! What stands in the JSON is written, zeros and empty messages too, as an absent field and an empty one are two things in
//! JSON; null and empty lists are not. A field that the table does not know is an error, never left out: the table is that
//! of the release whose types the agent has, and a test holds it against Kubernetes' own.

mod fields;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value};

use fields::{Field, Kind, Shape};

/// Why a pod cannot be written: something that the table does not foresee.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}.{field} cannot be written in protobuf")]
pub(super) struct Unwritable {
    message: &'static str,
    field: String,
}

/// The pod with this status.
pub(super) fn pod(pod: &Pod, status: &PodStatus) -> Result<Vec<u8>, Unwritable> {
    let unwritable = |field: &str| Unwritable {
        message: "Pod",
        field: field.to_owned(),
    };
    let Ok(Value::Object(mut object)) = serde_json::to_value(pod) else {
        return Err(unwritable("metadata"));
    };
    let status = serde_json::to_value(status).map_err(|_| unwritable("status"))?;
    object.insert("status".to_owned(), status);
    // The message itself says what it is.
    object.remove("apiVersion");
    object.remove("kind");
    let mut out = Vec::new();
    whole("Pod", &object, &mut out)?;
    Ok(out)
}

/// Writes a message that has all of the object's fields.
fn whole(
    message: &'static str,
    object: &Map<String, Value>,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    let written = part(message, object, out)?;
    let mut there = object.iter().filter(|(_, value)| !value.is_null());
    if written == there.clone().count() {
        return Ok(());
    }
    let unknown = there.find(|(name, _)| !fields::has(message, name));
    Err(Unwritable {
        message,
        field: unknown.map(|(name, _)| name.clone()).unwrap_or_default(),
    })
}

/// Writes those of the object's fields that the message has, in the order of their numbers, and counts them.
fn part(
    message: &'static str,
    object: &Map<String, Value>,
    out: &mut Vec<u8>,
) -> Result<usize, Unwritable> {
    let mut written = 0;
    for field in fields::of(message) {
        if let (Shape::Inline, Kind::Message(inner)) = (field.shape, field.kind) {
            let mut bytes = Vec::new();
            let inside = part(inner, object, &mut bytes)?;
            if inside > 0 {
                delimited(field.number, &bytes, out);
            }
            written += inside;
            continue;
        }
        let Some(value) = object.get(field.json).filter(|value| !value.is_null()) else {
            continue;
        };
        write(field, value, out)?.ok_or_else(|| Unwritable {
            message,
            field: field.json.to_owned(),
        })?;
        written += 1;
    }
    Ok(written)
}

/// Writes a field; nothing when the value is not of its kind.
fn write(field: &Field, value: &Value, out: &mut Vec<u8>) -> Result<Option<()>, Unwritable> {
    match field.shape {
        Shape::One | Shape::Inline => one(field.number, field.kind, value, out),
        Shape::Many => {
            let Some(list) = value.as_array() else {
                return Ok(None);
            };
            for item in list {
                if one(field.number, field.kind, item, out)?.is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        }
        Shape::Map => {
            let Some(map) = value.as_object() else {
                return Ok(None);
            };
            // In the order of the keys, as Kubernetes writes them.
            for (key, item) in map {
                let mut entry = Vec::new();
                delimited(1, key.as_bytes(), &mut entry);
                if one(2, field.kind, item, &mut entry)?.is_none() {
                    return Ok(None);
                }
                delimited(field.number, &entry, out);
            }
            Ok(Some(()))
        }
    }
}

/// Writes a value; nothing when it is not of that kind.
fn one(
    number: u32,
    kind: Kind,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<Option<()>, Unwritable> {
    let mut inner = Vec::new();
    let written = match kind {
        Kind::Text => value
            .as_str()
            .map(|text| delimited(number, text.as_bytes(), out)),
        Kind::Integer => value.as_i64().map(|integer| varint(number, integer, out)),
        Kind::Flag => value.as_bool().map(|flag| varint(number, flag.into(), out)),
        Kind::Message(message) => match value.as_object() {
            Some(object) => {
                whole(message, object, &mut inner)?;
                delimited(number, &inner, out);
                Some(())
            }
            None => None,
        },
        Kind::Time | Kind::Quantity | Kind::IntOrString | Kind::Fields => {
            odd(kind, value, &mut inner).map(|()| delimited(number, &inner, out))
        }
    };
    Ok(written)
}

/// Writes a message whose form in JSON is another.
fn odd(kind: Kind, value: &Value, out: &mut Vec<u8>) -> Option<()> {
    match kind {
        Kind::Time => {
            let time: Timestamp = value.as_str()?.parse().ok()?;
            // Whole seconds, with the other field as Kubernetes always writes it.
            varint(1, time.as_second(), out);
            varint(2, 0, out);
        }
        Kind::Quantity => delimited(1, value.as_str()?.as_bytes(), out),
        Kind::IntOrString => match value {
            Value::String(text) => {
                varint(1, 1, out);
                varint(2, 0, out);
                delimited(3, text.as_bytes(), out);
            }
            _ => {
                varint(1, 0, out);
                varint(2, value.as_i64()?, out);
                delimited(3, b"", out);
            }
        },
        Kind::Fields => delimited(1, value.to_string().as_bytes(), out),
        Kind::Text | Kind::Integer | Kind::Flag | Kind::Message(_) => return None,
    }
    Some(())
}

/// A negative number is written as the 64 bits that it is, whatever its size.
fn varint(number: u32, value: i64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value.cast_unsigned(), out);
}

fn delimited(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
