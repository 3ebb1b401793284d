//! What is said of a command line that cannot be understood.

use std::process::ExitCode;

use clap::error::ErrorKind;

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
    words.join(" ").replace(" tip: ", ": ")
}
