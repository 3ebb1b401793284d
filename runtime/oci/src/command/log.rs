//! What `hanok oci` tells on standard error, and to the file that a caller reads errors from.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

/// How a line in the file looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// `time="..." level=error msg="..."`.
    Text,
    /// The same as an object.
    Json,
}

/// Errors and warnings.
#[derive(Debug)]
pub(super) struct Log {
    file: Option<PathBuf>,
    format: Format,
}

impl Log {
    pub(super) fn new(file: Option<PathBuf>, format: Format) -> Self {
        Self { file, format }
    }

    pub(super) fn error(&self, message: &str) {
        self.write("error", message);
    }

    pub(super) fn warning(&self, message: &str) {
        self.write("warning", message);
    }

    fn write(&self, level: &str, message: &str) {
        eprintln!("hanok: {message}");
        let Some(path) = &self.file else {
            return;
        };
        let now = jiff::Timestamp::now().to_string();
        let line = line(self.format, &now, level, message);
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("hanok: cannot write {}: {error}", path.display());
        }
    }
}

fn line(format: Format, time: &str, level: &str, message: &str) -> String {
    match format {
        Format::Json => json!({"level": level, "msg": message, "time": time}).to_string() + "\n",
        Format::Text => format!("time={time:?} level={level} msg={message:?}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_in_both_formats() {
        let text = line(Format::Text, "t", "error", "a \"b\"\nc");
        assert_eq!(text, "time=\"t\" level=error msg=\"a \\\"b\\\"\\nc\"\n");
        let json = line(Format::Json, "t", "error", "a \"b\"\nc");
        assert_eq!(
            json,
            "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\\nc\",\"time\":\"t\"}\n"
        );
    }
}
