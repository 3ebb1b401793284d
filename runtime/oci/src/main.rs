//! `hanok-oci`: `hanok oci` as a program of its own.
//!
//! Callers know a program and no subcommand, and start it several times a container. It is built as the shim is, static
//! and at a fixed address: loaded as other programs are, it would spend most of its time on page faults.

use std::process::ExitCode;

use clap::Parser;
use hanok_oci::complaint::refuse;

/// An OCI runtime: create, start, state, kill, delete, run, exec, ps, features.
#[derive(Debug, Parser)]
#[command(name = "hanok-oci", version)]
struct Cli {
    #[command(flatten)]
    options: hanok_oci::Options,
}

fn main() -> ExitCode {
    hanok_shim::sys::memory::warm_heap();
    match Cli::try_parse() {
        Ok(cli) => hanok_oci::run(cli.options),
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
