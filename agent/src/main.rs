//! The `hanok` binary: parses the command line and hands over to one subcommand.

use std::process::ExitCode;

use clap::Parser;
use hanok_agent::cmd;

/// A Kubernetes node in one program.
#[derive(Debug, Parser)]
#[command(name = "hanok", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Join a cluster as a node and run its pods.
    Agent(Box<cmd::agent::Options>),
    /// Run the pods of a manifest in the foreground, without an API server.
    Run(Box<cmd::run::Options>),
    /// Images: import, ls, rm.
    Image(cmd::image::Options),
    /// List pods and containers on this machine.
    Ps(cmd::ps::Options),
    /// An OCI runtime: create, start, state, kill, delete, run, exec, ps, features.
    Oci(Box<hanok_oci::Options>),
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(Cli {
            command: Command::Oci(options),
        }) => return hanok_oci::run(*options),
        Ok(cli) => cli.command,
        Err(error) => return hanok_oci::complaint::refuse(&error),
    };
    hanok_agent::descriptors::make_room();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("hanok: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match command {
            Command::Agent(options) => cmd::agent::run(*options).await,
            Command::Run(options) => cmd::run::run(*options).await,
            Command::Image(options) => cmd::image::run(options).await,
            Command::Ps(options) => cmd::ps::run(options).await,
            Command::Oci(_) => Ok(()),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hanok: {}", hanok_oci::complaint::chain(&error));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanok_oci::complaint::one_line;

    #[test]
    fn a_wrong_command_line_is_one_line_that_names_flag_and_value() {
        for (line, want) in [
            (
                "agent --max-pods=many",
                "invalid value 'many' for '--max-pods <N>': invalid digit found in string",
            ),
            (
                "agent --max-podz=3",
                "unexpected argument '--max-podz' found: a similar argument exists: '--max-pods'",
            ),
            (
                "run",
                "the following required arguments were not provided: <FILE>...",
            ),
            ("agnet", "unrecognized subcommand 'agnet'"),
        ] {
            let error = Cli::try_parse_from(["hanok"].into_iter().chain(line.split(' ')));
            let message = one_line(&error.expect_err(line).to_string());
            assert!(message.starts_with(want), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
