//! The options of `hanok oci update` as a document of resources.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// Limits; those that are not given stay.
#[derive(Debug, Default, clap::Args)]
pub(super) struct UpdateArgs {
    /// A file with the resources as in a specification; - for standard input. The other options do not count then.
    #[arg(long, short)]
    resources: Option<PathBuf>,
    /// Weight of block input and output, 10 to 1000.
    #[arg(long)]
    blkio_weight: Option<u16>,
    /// Period of the processors' quota, microseconds.
    #[arg(long)]
    cpu_period: Option<u64>,
    /// Processor time in a period, microseconds; -1 for no limit.
    #[arg(long, allow_hyphen_values = true)]
    cpu_quota: Option<i64>,
    /// What may be saved of the quota, microseconds.
    #[arg(long)]
    cpu_burst: Option<u64>,
    /// Share of the processors.
    #[arg(long, visible_alias = "cpu-shares")]
    cpu_share: Option<u64>,
    /// Period of real-time processes, microseconds.
    #[arg(long)]
    cpu_rt_period: Option<u64>,
    /// Processor time of real-time processes in a period, microseconds.
    #[arg(long, allow_hyphen_values = true)]
    cpu_rt_runtime: Option<i64>,
    /// Processors, such as 0-2,7.
    #[arg(long)]
    cpuset_cpus: Option<String>,
    /// Memory nodes.
    #[arg(long)]
    cpuset_mems: Option<String>,
    /// 1 for what runs only when nothing else wants to.
    #[arg(long)]
    cpu_idle: Option<i64>,
    /// Memory, bytes; -1 for no limit.
    #[arg(long, short, allow_hyphen_values = true)]
    memory: Option<i64>,
    /// Memory that is kept for it, bytes.
    #[arg(long, allow_hyphen_values = true)]
    memory_reservation: Option<i64>,
    /// Memory and swap, bytes; -1 for no limit.
    #[arg(long, allow_hyphen_values = true)]
    memory_swap: Option<i64>,
    /// Tasks; -1 for no limit.
    #[arg(long, allow_hyphen_values = true)]
    pids_limit: Option<i64>,
    /// Refused: there is no support for Intel's RDT.
    #[arg(long)]
    l3_cache_schema: Option<String>,
    /// Refused: there is no support for Intel's RDT.
    #[arg(long)]
    mem_bw_schema: Option<String>,
}

impl UpdateArgs {
    /// The document.
    pub(super) fn document(self) -> Result<Value> {
        if self.l3_cache_schema.is_some() || self.mem_bw_schema.is_some() {
            bail!("Intel's RDT is not supported");
        }
        if let Some(path) = &self.resources {
            let text = read(path)?;
            return serde_json::from_str(&text)
                .with_context(|| format!("cannot parse {}", path.display()));
        }
        let mut document = Map::new();
        let parts = [
            (
                "cpu",
                vec![
                    ("shares", self.cpu_share.map(Value::from)),
                    ("quota", self.cpu_quota.map(Value::from)),
                    ("period", self.cpu_period.map(Value::from)),
                    ("burst", self.cpu_burst.map(Value::from)),
                    ("realtimeRuntime", self.cpu_rt_runtime.map(Value::from)),
                    ("realtimePeriod", self.cpu_rt_period.map(Value::from)),
                    ("cpus", self.cpuset_cpus.map(Value::from)),
                    ("mems", self.cpuset_mems.map(Value::from)),
                    ("idle", self.cpu_idle.map(Value::from)),
                ],
            ),
            (
                "memory",
                vec![
                    ("limit", self.memory.map(Value::from)),
                    ("reservation", self.memory_reservation.map(Value::from)),
                    ("swap", self.memory_swap.map(Value::from)),
                ],
            ),
            ("pids", vec![("limit", self.pids_limit.map(Value::from))]),
            (
                "blockIO",
                vec![(
                    "weight",
                    self.blkio_weight.filter(|w| *w != 0).map(Value::from),
                )],
            ),
        ];
        for (name, fields) in parts {
            let given = fields.into_iter();
            let given = given.filter_map(|(name, value)| Some((name.to_owned(), value?)));
            let given: Map<String, Value> = given.collect();
            if !given.is_empty() {
                document.insert(name.to_owned(), Value::Object(given));
            }
        }
        Ok(Value::Object(document))
    }
}

fn read(path: &Path) -> Result<String> {
    if path != Path::new("-") {
        return std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()));
    }
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.context("cannot read standard input").map(|_| text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_given_is_in_the_document_and_nothing_else() {
        let args = UpdateArgs {
            memory: Some(-1),
            cpu_quota: Some(5000),
            cpuset_cpus: Some("0".into()),
            blkio_weight: Some(0),
            ..UpdateArgs::default()
        };
        let want = json!({"cpu": {"quota": 5000, "cpus": "0"}, "memory": {"limit": -1}});
        assert_eq!(args.document().unwrap(), want);
        assert_eq!(UpdateArgs::default().document().unwrap(), json!({}));
    }

    #[test]
    fn a_file_is_the_whole_document() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        std::fs::write(&path, r#"{"pids":{"limit":7}}"#).unwrap();
        let args = UpdateArgs {
            resources: Some(path.clone()),
            memory: Some(9),
            ..UpdateArgs::default()
        };
        assert_eq!(args.document().unwrap(), json!({"pids": {"limit": 7}}));
        std::fs::write(&path, "{").unwrap();
        let broken = UpdateArgs {
            resources: Some(path),
            ..UpdateArgs::default()
        };
        assert!(broken.document().is_err());
    }
}
