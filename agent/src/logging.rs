//! Logs on standard error, by level and module.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::timeline::Timeline;

/// Libraries that say more than anybody wants to read at the level of the rest.
const QUIET: &str = "h2=warn,hyper=warn,hyper_util=warn,rustls=warn,tower=warn,kube_client=warn";

/// Starts to log. `verbosity` is the kubelet's: up to 3 is info, 4 and 5 debug, more is trace; RUST_LOG goes before
/// it. The timeline listens to the same spans.
pub fn start(verbosity: u8, timeline: &Timeline) {
    let level = match verbosity {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},{QUIET}")));
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let subscriber = tracing_subscriber::registry()
        .with(timeline.layer())
        .with(tracing_subscriber::Layer::with_filter(lines, filter));
    if let Err(error) = subscriber.try_init() {
        eprintln!("hanok: cannot log: {error}");
    }
}
