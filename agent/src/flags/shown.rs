//! The flags for who asks how this process was started.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Flags;

impl Flags {
    /// Every flag with the value that was given, or nothing. What may be a secret is not shown.
    pub fn shown(&self) -> BTreeMap<String, String> {
        // A path that is no text has no JSON, and is refused elsewhere.
        let Ok(Value::Object(flags)) = serde_json::to_value(self) else {
            return BTreeMap::new();
        };
        let shown = |(name, value): (String, Value)| {
            let text = match value {
                Value::Null => String::new(),
                Value::String(_) if SECRET.contains(&name.as_str()) => "CLASSIFIED".to_owned(),
                Value::String(url) if name == "manifest-url" => without_user(url),
                Value::String(text) => text,
                Value::Array(list) => {
                    let list: Vec<_> = list.iter().filter_map(Value::as_str).collect();
                    list.join(",")
                }
                other => other.to_string(),
            };
            (name, text)
        };
        flags.into_iter().map(shown).collect()
    }
}

/// An address without the user and the password that it may have.
fn without_user(url: String) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    match authority.rfind('@') {
        Some(at) => format!("{scheme}://CLASSIFIED{}", &rest[at..]),
        None => url,
    }
}

/// Flags whose values may be secrets.
const SECRET: [&str; 1] = ["manifest-url-header"];
