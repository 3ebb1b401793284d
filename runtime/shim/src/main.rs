//! `hanok-shim`: one small process per pod that owns its containers, their logs and exit codes.
//!
//! Started by the runtime, it outlives it: containers are its children, their output comes to it, and what
//! it knows is on disk before it is announced. One thread, one epoll loop ([`shim`]), bounded buffers.
//!
//! - [`daemon`]: from the runtime's child to a child of PID 1.
//! - [`users`], [`start_sandbox`], [`start_container`], [`exec`], [`kill`], [`resize`], [`attach`], [`delete`],
//!   [`shutdown`]: a request each.
//! - [`process`]: the way to exec, shared by containers and execs.
//! - [`oci`]: one container without a daemon, for the OCI command line.
//! - [`reap`], [`output`], [`relay`], [`log`]: what happens in between.

mod args;
mod attach;
mod cgroup;
mod channel;
mod check_users;
mod connection;
mod container;
mod daemon;
mod delete;
mod exec;
mod exit_record;
mod failure;
mod host;
mod kill;
mod log;
mod oci;
mod output;
mod poller;
mod process;
mod reap;
mod relay;
mod resize;
mod resolve;
mod shim;
mod shutdown;
mod start_container;
mod start_sandbox;
mod users;

use std::io::Write;
use std::process::ExitCode;

use args::{Args, Verb};

fn main() -> ExitCode {
    hanok_shim::sys::signal::forget_inherited();
    let args = match Args::parse(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(message) => return fail(&format!("{message}\n{}", args::USAGE), 2),
    };
    let done = match args.verb {
        Verb::Launch => daemon::launch(&args),
        Verb::Serve => daemon::serve(&args),
        Verb::CheckUserNamespaces => check_users::check(&args.state_dir),
        Verb::Oci(fd) => oci::run(fd, &args.state_dir),
        Verb::Hold => {
            // It does not end before whoever holds the other end lets go, or dies.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure.message, 1),
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "hanok-shim: {message}");
    ExitCode::from(code)
}
