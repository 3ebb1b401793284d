//! `hanok-oci`: `hanok oci` as a program of its own.
//!
//! Callers know a program and no subcommand, and start it several times a container. Nothing of the node is in it,
//! whose tables alone take a millisecond to relocate.

use std::process::ExitCode;

use clap::Parser;
use hanok_agent::cmd::complaint::refuse;
use hanok_agent::cmd::oci;

/// An OCI runtime: create, start, state, kill, delete, run, exec, ps, features.
#[derive(Debug, Parser)]
#[command(name = "hanok-oci", version)]
struct Cli {
    #[command(flatten)]
    options: oci::Options,
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => oci::run(cli.options),
        Err(error) => refuse(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_the_commands_without_a_subcommand_before_them() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("/usr/bin/hanok-oci --root /r state --log=/l c").is_ok());
        assert!(parse("hanok-oci oci state c").is_err());
        assert!(parse("hanok-oci state").is_err());
    }
}
