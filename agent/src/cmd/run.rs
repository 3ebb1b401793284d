//! `hanok run`.

/// Options of `hanok run`.
#[derive(Debug, clap::Args)]
pub struct Options {}

/// Runs the command.
pub async fn run(_options: Options) -> anyhow::Result<()> {
    anyhow::bail!("hanok run is not built yet")
}
