//! `hanok agent`: runs the pods of a cluster's node, or the static pods of a standalone one, until it is told to stop;
//! pods run on without it.
//!
//! ```text
//! settings ─► checks ─┬─► cluster      joins; pods, objects and questions go by the API server
//!                     └─► standalone   static pods only; events go to the log
//!                          both: node  the runtime and what is around it, put together in one way
//! ```
//! Puts everything together and starts it; decides nothing about pods itself.

mod checks;
mod cluster;
mod node;
mod notify;
mod parts;
mod standalone;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{self, Machine};
use crate::flags::Flags;
use crate::logging;
use crate::node::machine;
use crate::timeline::Timeline;

/// Options of `hanok agent`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command: returns after a signal, or with what keeps the agent from starting.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let timeline = Timeline::default();
    logging::start(options.flags.verbosity.unwrap_or(0), &timeline);
    // From now on a signal ends the agent in order.
    let stop = stop_at_signal()?;
    let watchdog = notify::Watchdog::start();
    let settings = config::load(&options.flags, &this_machine()?)?;
    if !settings.without_effect.is_empty() {
        tracing::warn!(
            "given and without effect: {}",
            settings.without_effect.join(", ")
        );
    }
    checks::check(&settings)?;
    match settings.cluster.clone() {
        Some(cluster) => cluster::run(settings, cluster, timeline, watchdog, stop).await,
        None => standalone::run(settings, timeline, watchdog, stop).await,
    }
}

/// Ends with the first TERM or INT.
fn stop_at_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut term = signal(SignalKind::terminate()).context("cannot wait for signals")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        token.cancel();
    });
    Ok(stop)
}

fn this_machine() -> anyhow::Result<Machine> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let program_dir = program
        .parent()
        .map(std::path::Path::to_owned)
        .unwrap_or_default();
    Ok(Machine {
        hostname: machine::hostname(),
        program_dir,
    })
}
