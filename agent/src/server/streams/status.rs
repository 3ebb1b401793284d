//! How an exec ended, as clients read it off the error stream.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Outcome {
    /// With exit code 0, or the client needs no code.
    Success,
    /// With another exit code.
    ExitCode(i32),
    /// It did not run, or nobody knows how it ended.
    Error(String),
}

impl Outcome {
    /// The Status object of protocol v4 and later.
    pub(super) fn json(&self) -> Vec<u8> {
        let cause = |reason: Option<&str>, message: String| StatusDetails {
            causes: Some(vec![StatusCause {
                reason: reason.map(str::to_owned),
                message: Some(message),
                field: None,
            }]),
            ..StatusDetails::default()
        };
        let failure = |message: String, reason: &str, details| Status {
            status: Some("Failure".to_owned()),
            message: Some(message),
            reason: Some(reason.to_owned()),
            details: Some(details),
            ..Status::default()
        };
        let status = match self {
            Self::Success => Status {
                status: Some("Success".to_owned()),
                ..Status::default()
            },
            Self::ExitCode(code) => failure(
                self.text().unwrap_or_default(),
                "NonZeroExitCode",
                cause(Some("ExitCode"), code.to_string()),
            ),
            Self::Error(message) => {
                let mut status = failure(
                    format!("Internal error occurred: {message}"),
                    "InternalError",
                    cause(None, message.clone()),
                );
                status.code = Some(500);
                status
            }
        };
        // The object consists of strings and numbers; it always has a JSON form.
        serde_json::to_vec(&status).unwrap_or_default()
    }

    /// The text of protocols before v4; none for success.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Success => None,
            Self::ExitCode(code) => Some(format!(
                "command terminated with non-zero exit code: exit status {code}"
            )),
            Self::Error(message) => {
                Some(format!("error executing command in container: {message}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(outcome: &Outcome) -> serde_json::Value {
        serde_json::from_slice(&outcome.json()).unwrap()
    }

    #[test]
    fn the_exit_code_is_a_cause() {
        assert_eq!(value(&Outcome::Success)["status"], "Success");
        let three = value(&Outcome::ExitCode(3));
        assert_eq!(three["status"], "Failure");
        assert_eq!(three["reason"], "NonZeroExitCode");
        assert_eq!(three["details"]["causes"][0]["reason"], "ExitCode");
        assert_eq!(three["details"]["causes"][0]["message"], "3");
    }

    #[test]
    fn an_error_is_internal_and_keeps_its_words() {
        let error = value(&Outcome::Error("no shim".to_owned()));
        assert_eq!(
            (&error["reason"], &error["code"]),
            (&"InternalError".into(), &500.into())
        );
        assert_eq!(error["message"], "Internal error occurred: no shim");
    }
}
