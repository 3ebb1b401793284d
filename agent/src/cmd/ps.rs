//! `hanok ps`.

/// Options of `hanok ps`.
#[derive(Debug, clap::Args)]
pub struct Options {}

/// Runs the command.
pub async fn run(_options: Options) -> anyhow::Result<()> {
    anyhow::bail!("hanok ps is not built yet")
}
