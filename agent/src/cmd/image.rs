//! `hanok image`.

/// Options of `hanok image`.
#[derive(Debug, clap::Args)]
pub struct Options {}

/// Runs the command.
pub async fn run(_options: Options) -> anyhow::Result<()> {
    anyhow::bail!("hanok image is not built yet")
}
