//! What of a log is wanted: the query's parameters, checked as the API server checks PodLogOptions. Pure.

use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};

use super::super::target::Refusal;

/// Which of a container's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Which {
    /// Both.
    #[default]
    All,
    /// Only what was written to stdout.
    Stdout,
    /// Only what was written to stderr.
    Stderr,
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LogOptions {
    pub(super) follow: bool,
    pub(super) previous: bool,
    pub(super) timestamps: bool,
    /// Only lines from this moment on.
    pub(super) since: Option<Timestamp>,
    /// Only this many lines from the end.
    pub(super) tail: Option<u64>,
    /// Only this many bytes.
    pub(super) limit: Option<u64>,
    pub(super) stream: Which,
}

impl LogOptions {
    /// Reads the query; `now` is what sinceSeconds counts back from. Unknown parameters are ignored.
    pub(super) fn parse(parameters: &[(String, String)], now: Timestamp) -> Result<Self, Refusal> {
        let mut options = Self::default();
        for (name, value) in parameters {
            match name.as_str() {
                "follow" => options.follow = flag(value)?,
                "previous" => options.previous = flag(value)?,
                "timestamps" => options.timestamps = flag(value)?,
                "tailLines" | "tail" if value == "all" => options.tail = None,
                "tailLines" | "tail" => options.tail = Some(number(name, value, 0)?),
                "limitBytes" => options.limit = Some(number(name, value, 1)?),
                "sinceSeconds" => {
                    let seconds = number(name, value, 1)?;
                    options.set_since(before(now, seconds))?;
                }
                "sinceTime" => {
                    let time = value.parse().map_err(|_| invalid(name, value))?;
                    options.set_since(time)?;
                }
                "stream" => {
                    options.stream = match value.as_str() {
                        "" | "All" => Which::All,
                        "Stdout" => Which::Stdout,
                        "Stderr" => Which::Stderr,
                        _ => return Err(invalid(name, value)),
                    }
                }
                _ => {}
            }
        }
        Ok(options)
    }

    fn set_since(&mut self, time: Timestamp) -> Result<(), Refusal> {
        if self.since.replace(time).is_some() {
            let message = "at most one of sinceTime or sinceSeconds may be specified";
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
        Ok(())
    }
}

/// A moment some seconds ago; the beginning of time for more seconds than there were.
fn before(now: Timestamp, seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    now.checked_sub(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MIN)
}

fn flag(value: &str) -> Result<bool, Refusal> {
    match value {
        "true" | "1" | "t" | "T" | "True" | "TRUE" => Ok(true),
        "false" | "0" | "f" | "F" | "False" | "FALSE" | "" => Ok(false),
        _ => Err(Refusal::bad_request(
            r#"{"message": "Unable to decode query."}"#,
        )),
    }
}

fn number(name: &str, value: &str, least: u64) -> Result<u64, Refusal> {
    let number: i64 = value
        .parse()
        .map_err(|_| Refusal::bad_request(r#"{"message": "Unable to decode query."}"#))?;
    u64::try_from(number)
        .ok()
        .filter(|number| *number >= least)
        .ok_or_else(|| invalid(name, value))
}

fn invalid(name: &str, value: &str) -> Refusal {
    let message = format!("invalid value {value:?} for {name}");
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<LogOptions, StatusCode> {
        let parameters: Vec<_> = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let now = "2026-11-29T12:00:00Z".parse().unwrap();
        LogOptions::parse(&parameters, now).map_err(|refusal| refusal.code)
    }

    #[test]
    fn every_parameter_is_read() {
        let options = parse(&[
            ("follow", "true"),
            ("previous", "1"),
            ("timestamps", "true"),
            ("tailLines", "5"),
            ("limitBytes", "100"),
            ("sinceSeconds", "60"),
            ("stream", "Stderr"),
            ("pretty", "x"),
        ]);
        let expected = LogOptions {
            follow: true,
            previous: true,
            timestamps: true,
            tail: Some(5),
            limit: Some(100),
            since: Some("2026-11-29T11:59:00Z".parse().unwrap()),
            stream: Which::Stderr,
        };
        assert_eq!(options, Ok(expected));
    }

    #[test]
    fn nonsense_is_refused() {
        let unprocessable = Err(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(parse(&[("tailLines", "-1")]), unprocessable);
        assert_eq!(parse(&[("limitBytes", "0")]), unprocessable);
        assert_eq!(parse(&[("sinceSeconds", "0")]), unprocessable);
        assert_eq!(parse(&[("sinceTime", "yesterday")]), unprocessable);
        assert_eq!(parse(&[("stream", "both")]), unprocessable);
        let both = [("sinceSeconds", "1"), ("sinceTime", "2026-11-29T11:59:00Z")];
        assert_eq!(parse(&both), unprocessable);
        assert_eq!(parse(&[("tailLines", "x")]), Err(StatusCode::BAD_REQUEST));
        assert_eq!(parse(&[("follow", "maybe")]), Err(StatusCode::BAD_REQUEST));
        assert!(parse(&[("sinceSeconds", "9223372036854775807")]).is_ok());
    }
}
