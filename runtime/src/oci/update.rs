//! `update`: other limits for a container that runs.

use oci_spec::runtime::LinuxResources;
use serde_json::Value;

use super::record::Status;
use super::resources::{self, Write};
use super::{OciError, Result, Runtime, cgroups, document};
use crate::cgroup::{Place, Undo};

impl Runtime {
    /// Changes limits by a document like `linux.resources` of the specification: all of them or none. What is not in it
    /// stays as it is; rules for devices are left alone, as with every runtime.
    pub fn update(&self, id: &str, document: &Value) -> Result<()> {
        let record = self.state(id)?;
        record.require("update", &Status::ALIVE)?;
        let mut resources: LinuxResources = document::typed("resources".as_ref(), document)?;
        let places = record.places();
        complete(&mut resources, &places);
        if let Some(controller) = resources::missing_controller(&resources, &places) {
            let message = format!("the container has no {controller} cgroup");
            return Err(OciError::Option(message));
        }
        let mut undo = Undo::default();
        for place in &places {
            let writes = resources::writes(place, &resources)
                .into_iter()
                .map(|Write { file, value, .. }| (file, value));
            if let Err(error) = place.change(writes, &mut undo) {
                undo.undo();
                return Err(error.into());
            }
        }
        // Not before the files, for systemd sets a memory limit without asking whether what is in use fits.
        if let Err(error) = cgroups::tell(self, &record, &places, &resources) {
            undo.undo();
            return Err(error);
        }
        undo.keep();
        Ok(())
    }
}

/// Adds what follows from the rest: no limit of memory is none of memory and swap, and a limit of both together is on
/// v2 one of swap alone, which takes the other one.
fn complete(resources: &mut LinuxResources, places: &[Place]) {
    let Some(mut memory) = *resources.memory() else {
        return;
    };
    let set = |value: Option<i64>| value.filter(|value| *value != 0);
    match (set(memory.limit()), set(memory.swap())) {
        (Some(limit), None) if limit < 0 => {
            memory.set_swap(Some(-1));
        }
        (None, Some(swap)) if swap > 0 => {
            let unified = places.iter().find(|place| place.unified);
            let limit = unified.and_then(|place| place.number("memory.max"));
            memory.set_limit(limit.and_then(|limit| i64::try_from(limit).ok()));
        }
        _ => {}
    }
    resources.set_memory(Some(memory));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str) -> (Option<i64>, Option<i64>) {
        let mut resources: LinuxResources = serde_json::from_str(text).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("cgroup.controllers", ""), ("memory.max", "4096\n")] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        complete(&mut resources, &[Place::of(dir.path())]);
        let memory = resources.memory().unwrap();
        (memory.limit(), memory.swap())
    }

    #[test]
    fn memory_and_swap_are_completed_from_each_other() {
        for (text, want) in [
            (r#"{"memory":{"limit":-1}}"#, (Some(-1), Some(-1))),
            (r#"{"memory":{"limit":9}}"#, (Some(9), None)),
            (r#"{"memory":{"swap":9000}}"#, (Some(4096), Some(9000))),
            (r#"{"memory":{"limit":9,"swap":10}}"#, (Some(9), Some(10))),
        ] {
            assert_eq!(completed(text), want, "{text}");
        }
    }
}
