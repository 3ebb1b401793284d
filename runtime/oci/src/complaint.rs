//! How complaints look: one line, and of what was given no more than it takes to know it again.

use std::process::ExitCode;

use clap::error::ErrorKind;

/// Longest complaint, in characters, and how much of a longer one is shown of its beginning and of its end: between
/// them is a value that somebody gave, and the end says what is wrong with it.
const LONGEST: usize = 1000;
const BEGINNING: usize = 600;
const END: usize = 300;

/// Exit code of a command line that cannot be understood.
const USAGE: u8 = 2;

/// Prints help as it was asked for, and what is wrong with a command line as every other complaint: in one line.
pub fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    eprintln!("hanok: {}", one_line(&error.to_string()));
    ExitCode::from(USAGE)
}

/// A complaint of clap without its heading, usage and pointer to the help.
pub fn one_line(message: &str) -> String {
    let message = message.trim_start_matches("error: ");
    let lines = message.lines().take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    clip(&words.join(" ").replace(" tip: ", ": "))
}

/// An error with its causes, each of them clipped.
pub fn chain(error: &anyhow::Error) -> String {
    let layers: Vec<String> = error
        .chain()
        .map(|layer| clip(&layer.to_string()))
        .collect();
    layers.join(": ")
}

/// A complaint without most of what is too long in it.
pub fn clip(message: &str) -> String {
    let count = message.chars().count();
    if count <= LONGEST {
        return message.to_owned();
    }
    let at = |index: usize| {
        message
            .char_indices()
            .nth(index)
            .map_or(message.len(), |at| at.0)
    };
    let (beginning, end) = (&message[..at(BEGINNING)], &message[at(count - END)..]);
    format!("{beginning}[... {count} characters ...]{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_shown_by_its_ends_and_its_length() {
        let short = "ä".repeat(LONGEST);
        assert_eq!(clip(&short), short);
        let long = format!(
            "config.yaml: field x: \"{}\": is no number",
            "ä".repeat(70_000)
        );
        let clipped = clip(&long);
        assert!(
            clipped.starts_with("config.yaml: field x: \"ää"),
            "{clipped}"
        );
        assert!(clipped.ends_with("ää\": is no number"), "{clipped}");
        assert!(
            clipped.contains("ä[... 70038 characters ...]ä"),
            "{clipped}"
        );
        assert!(clipped.chars().count() < LONGEST);
    }

    #[test]
    fn every_layer_of_an_error_is_told() {
        let cause = anyhow::anyhow!("c".repeat(5000)).context("b").context("a");
        let line = chain(&cause);
        assert!(
            line.starts_with("a: b: ccc") && line.len() < LONGEST,
            "{line}"
        );
    }
}
