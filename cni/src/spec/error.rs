//! The error object that a plugin prints when it fails (specification, section 5, "Error").

use std::fmt;

use serde_json::{Value, json};

use super::fields::{Field, ParseError, document};
use super::{MAX_RESULT, Version};

/// What a plugin says about its failure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorObject {
    /// 1 to 99 are the specification's: 3 unknown container, 11 try again later, 50 not available, ...
    pub code: u32,
    /// One short sentence.
    pub msg: String,
    /// More about it; may be empty.
    pub details: String,
}

impl ErrorObject {
    /// The network cannot serve ADD now (STATUS).
    pub const NOT_AVAILABLE: u32 = 50;
    /// The network cannot serve ADD now, and containers in it may lack connectivity (STATUS).
    pub const LIMITED_CONNECTIVITY: u32 = 51;

    /// Reads the object from a plugin's standard output.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let value = document(bytes, MAX_RESULT)?;
        let root = Field::root(&value);
        Ok(Self {
            code: root.need("code")?.number()?,
            msg: root.text("msg")?,
            details: root.text("details")?,
        })
    }

    /// As the specification writes it.
    #[must_use]
    pub fn to_json(&self, version: Version) -> Value {
        json!({
            "cniVersion": version.as_str(),
            "code": self.code,
            "msg": self.msg,
            "details": self.details,
        })
    }
}

impl fmt::Display for ErrorObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.msg, self.code)?;
        if self.details.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.details)
        }
    }
}
