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
}

fn main() -> ExitCode {
    let cli = Cli::parse();
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
        match cli.command {
            Command::Agent(options) => cmd::agent::run(*options).await,
            Command::Run(options) => cmd::run::run(*options).await,
            Command::Image(options) => cmd::image::run(options).await,
            Command::Ps(options) => cmd::ps::run(options).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hanok: {error:#}");
            ExitCode::FAILURE
        }
    }
}
