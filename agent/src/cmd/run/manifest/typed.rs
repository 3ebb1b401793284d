//! From a YAML value to a typed object, strictly. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Complaint, one_line};

/// The typed form of an object; refuses fields that it does not have.
pub(super) fn typed<T: DeserializeOwned + Serialize>(value: Value) -> Result<T, Complaint> {
    let object: T = serde_path_to_error::deserialize(&value).map_err(|error| {
        let field = error.path().to_string();
        let given = at(&value, &field)
            .map(|given| format!("{given}: "))
            .unwrap_or_default();
        let field = if field == "." { String::new() } else { field };
        Complaint::new(
            field,
            format!("{given}{}", one_line(&error.into_inner().to_string())),
        )
    })?;
    let known = serde_json::to_value(&object).unwrap_or_default();
    match unknown_field(&value, &known) {
        Some(field) => Err(Complaint::new(field, "unknown field")),
        None => Ok(object),
    }
}

/// The short value at a path as `serde_path_to_error` writes it.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let pointer = path.replace('[', ".").replace(']', "").replace('.', "/");
    value
        .pointer(&format!("/{pointer}"))
        .filter(|found| !found.is_object() && !found.is_array())
}

/// The path of a field that was given and is not known: it is gone when the object is written again.
fn unknown_field(given: &Value, known: &Value) -> Option<String> {
    let join = |name: String, rest: String| match rest.as_str() {
        "" => name,
        _ if rest.starts_with('[') => format!("{name}{rest}"),
        _ => format!("{name}.{rest}"),
    };
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let mut fields = given.iter().filter(|(_, value)| !value.is_null());
            fields.find_map(|(name, value)| match known.get(name) {
                None => Some(name.clone()),
                Some(known) => unknown_field(value, known).map(|rest| join(name.clone(), rest)),
            })
        }
        (Value::Array(given), Value::Array(known)) => {
            let mut items = given.iter().zip(known).enumerate();
            items.find_map(|(index, (given, known))| {
                unknown_field(given, known).map(|rest| join(format!("[{index}]"), rest))
            })
        }
        _ => None,
    }
}

/// Quantities may be written as numbers; the API's type is text.
pub(crate) fn quantities_to_text(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(quantities_to_text),
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), &mut *value) {
                    ("limits" | "requests" | "overhead", Value::Object(quantities)) => {
                        quantities.values_mut().for_each(number_to_text);
                    }
                    ("sizeLimit" | "divisor", value) => number_to_text(value),
                    (_, value) => quantities_to_text(value),
                }
            }
        }
        _ => {}
    }
}

fn number_to_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}
