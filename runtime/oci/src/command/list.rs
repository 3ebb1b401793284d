//! Tables of containers and of processes.

use std::process::Command as Program;

use anyhow::{Context, Result, bail};
use hanok_runtime::oci::Record;
use serde_json::Value;

/// The states as runc lists them: who does not see them by a table gets all of it.
pub(super) fn containers(records: &[Record]) -> Value {
    let documents = records.iter().map(|record| {
        let mut document = record.document();
        document["owner"] = "root".into();
        document
    });
    documents.collect()
}

/// One line for each.
pub(super) fn table(records: &[Record]) -> String {
    let heading = ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"].map(str::to_owned);
    let mut rows = vec![heading];
    rows.extend(records.iter().map(|record| {
        let document = record.document();
        let text = |field: &str| match &document[field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        [
            text("id"),
            text("pid"),
            text("status"),
            text("bundle"),
            text("created"),
            "root".to_owned(),
        ]
    }));
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0).max(8)
    });
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += line.join("    ").trim_end();
        text.push('\n');
    }
    text
}

/// The lines of ps(1) about these processes, and its heading.
pub(super) fn processes(pids: &[i32], options: &[String]) -> Result<String> {
    let words: Vec<&str> = match options.is_empty() {
        true => vec!["-ef"],
        false => options.iter().map(String::as_str).collect(),
    };
    let output = Program::new("ps")
        .args(words)
        .output()
        .context("cannot run ps")?;
    if !output.status.success() {
        bail!(
            "ps failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let column = heading.split_whitespace().position(|name| name == "PID");
    let column = column.context("the output of ps has no column PID")?;
    let mut table = format!("{heading}\n");
    for line in lines {
        let pid = line
            .split_whitespace()
            .nth(column)
            .and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid| pids.contains(&pid)) {
            table += line;
            table.push('\n');
        }
    }
    Ok(table)
}
