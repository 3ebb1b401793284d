//! Reading JSON fields one by one, so that an error can name the field and the value.

use std::str::FromStr;

use serde_json::{Map, Value};

/// How much of a wrong value an error shows, in characters.
const SHOWN: usize = 64;

/// A document that is not what the specification says.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Longer than any sensible document.
    #[error("document of {length} bytes, at most {limit} are read")]
    TooLarge {
        /// What was given.
        length: usize,
        /// What is accepted.
        limit: usize,
    },
    /// Not JSON.
    #[error("not JSON")]
    Json(#[source] serde_json::Error),
    /// A field is missing.
    #[error("field {field:?} is missing")]
    Missing {
        /// Path of the field, like `plugins[0].type`.
        field: String,
    },
    /// A field has the wrong value.
    #[error("field {field:?} is {value}, expected {expected}")]
    Wrong {
        /// Path of the field, like `plugins[0].type`.
        field: String,
        /// Its value, shortened.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

/// Parses a whole document within its limit.
pub(crate) fn document(bytes: &[u8], limit: usize) -> Result<Value, ParseError> {
    if bytes.len() > limit {
        return Err(ParseError::TooLarge {
            length: bytes.len(),
            limit,
        });
    }
    serde_json::from_slice(bytes).map_err(ParseError::Json)
}

/// One value of a document and the way to it.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    /// The whole document.
    pub(crate) fn root(value: &'a Value) -> Self {
        Self {
            path: String::new(),
            value,
        }
    }

    /// A field of this object; absent and null are the same, as Go writes empty lists as null.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Self>, ParseError> {
        let object = self.object()?;
        Ok(object.get(name).filter(|v| !v.is_null()).map(|value| Self {
            path: if self.path.is_empty() {
                name.to_owned()
            } else {
                format!("{}.{name}", self.path)
            },
            value,
        }))
    }

    /// A field of this object that has to be there.
    pub(crate) fn need(&self, name: &str) -> Result<Self, ParseError> {
        let field = if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        };
        self.get(name)?.ok_or(ParseError::Missing { field })
    }

    /// The elements of a list field; an absent one is empty.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<Self>, ParseError> {
        self.get(name)?
            .map_or_else(|| Ok(Vec::new()), |field| field.elements())
    }

    /// The elements of this list.
    pub(crate) fn elements(&self) -> Result<Vec<Self>, ParseError> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, value)| Self {
                path: format!("{}[{i}]", self.path),
                value,
            })
            .collect())
    }

    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, ParseError> {
        self.value
            .as_object()
            .ok_or_else(|| self.wrong("an object"))
    }

    pub(crate) fn string(&self) -> Result<&'a str, ParseError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    /// A string that parses into something.
    pub(crate) fn parse<T: FromStr>(&self, expected: &'static str) -> Result<T, ParseError> {
        self.string()?.parse().map_err(|_| self.wrong(expected))
    }

    pub(crate) fn boolean(&self) -> Result<bool, ParseError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wrong("true or false"))
    }

    pub(crate) fn number(&self) -> Result<u32, ParseError> {
        self.value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| self.wrong("a whole number from 0 to 4294967295"))
    }

    /// An optional string field, "" when absent.
    pub(crate) fn text(&self, name: &str) -> Result<String, ParseError> {
        self.get(name)?
            .map_or_else(|| Ok(String::new()), |f| f.string().map(str::to_owned))
    }

    /// An optional truth value, false when absent.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ParseError> {
        self.get(name)?.map_or(Ok(false), |f| f.boolean())
    }

    /// The strings of a list field.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, ParseError> {
        self.list(name)?
            .iter()
            .map(|f| f.string().map(str::to_owned))
            .collect()
    }

    /// The error that this field is not what it should be.
    pub(crate) fn wrong(&self, expected: &'static str) -> ParseError {
        let text = self.value.to_string();
        let mut value: String = text.chars().take(SHOWN).collect();
        if value.len() < text.len() {
            value.push('…');
        }
        let field = if self.path.is_empty() {
            "(document)".to_owned()
        } else {
            self.path.clone()
        };
        ParseError::Wrong {
            field,
            value,
            expected,
        }
    }
}
