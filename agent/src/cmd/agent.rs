//! `hanok agent`.

/// Options of `hanok agent`.
#[derive(Debug, clap::Args)]
pub struct Options {}

/// Runs the command.
pub async fn run(_options: Options) -> anyhow::Result<()> {
    anyhow::bail!("hanok agent is not built yet")
}
