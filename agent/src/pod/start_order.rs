//! Which containers wait for the postStart hooks of others. Pure.
//!
//! While a regular container with a postStart hook is being started, those after it in the list are not: that is how a
//! proxy in the first place has the others wait until it is ready. A start that fails holds nobody back. Beyond that the
//! containers of a pod start beside each other, where a kubelet takes one after the other, with its image.

use std::collections::{BTreeMap, BTreeSet};

use hanok_runtime::api::ContainerState;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::observation::Observation;
use super::spec;
use super::status::Waiting;

/// Whether a container that is to be started has to wait. Those of `failed` could not be started when it was their turn;
/// those of `starting` have been begun before this moment, those of `begun` at it.
pub fn waits(
    pod: &Pod,
    seen: &Observation,
    failed: &BTreeMap<String, Waiting>,
    starting: &BTreeSet<String>,
    begun: &BTreeSet<String>,
    name: &str,
) -> bool {
    let apps = spec::app_containers(pod);
    let Some(position) = apps.iter().position(|container| container.name == name) else {
        return false;
    };
    let is_hooked = |container: &&Container| {
        let lifecycle = container.lifecycle.as_ref();
        lifecycle.is_some_and(|lifecycle| lifecycle.post_start.is_some())
    };
    let has_run = |name: &str| {
        let record = seen.current(name);
        record.is_some_and(|record| record.state != ContainerState::Created)
    };
    let has_had_its_turn = has_run(name) || failed.contains_key(name);
    let mut before = apps[..position].iter().filter(is_hooked);
    before.any(|before| {
        // One that runs again does not come before one that has not had its turn.
        let again = has_run(&before.name) && !has_had_its_turn;
        starting.contains(&before.name) || begun.contains(&before.name) && !again
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::json;

    #[test]
    fn containers_wait_for_hooks_before_them() {
        let hook = json!({"postStart": {"sleep": {"seconds": 1}}});
        let pod = sample::from(json!({
            "initContainers": [{"name": "s", "image": "i:1", "restartPolicy": "Always", "lifecycle": hook}],
            "containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "i:1", "lifecycle": hook},
                {"name": "c", "image": "i:1"}],
        }));
        // Who has run, who has failed to, who was being started, who has just been begun; who waits of all.
        let table = [
            ("", "", "", "", ""),
            ("", "", "", "a b", "c"),
            ("", "", "b", "", "c"),
            ("", "b", "", "b", "c"),
            ("b", "", "b", "", "c"),
            ("b", "", "", "b", ""),
            ("b", "c", "", "b", "c"),
            ("b c", "", "", "b", "c"),
            ("", "", "a", "a", ""),
            ("s", "", "s", "s", ""),
        ];
        let set = |names: &str| names.split_whitespace().map(str::to_owned).collect();
        for (ran, failed, starting, begun, want) in table {
            let records = ran
                .split_whitespace()
                .map(|name| sample::running(&pod, name));
            let failed = failed.split_whitespace().map(|name| {
                let (reason, message) = ("ErrImagePull".to_owned(), String::new());
                (name.to_owned(), Waiting { reason, message })
            });
            let failed = failed.collect();
            let seen = Observation::new(sample::view(records.collect()), None);
            let mut all = vec!["s", "a", "b", "c"];
            all.retain(|name| waits(&pod, &seen, &failed, &set(starting), &set(begun), name));
            assert_eq!(all.join(" "), want, "{ran}; {starting}; {begun}");
        }
        let made = sample::record(&pod, "b", 0, ContainerState::Created);
        let seen = Observation::new(sample::view(vec![made]), None);
        let waits = waits(&pod, &seen, &BTreeMap::new(), &set(""), &set("b"), "c");
        assert!(waits, "what was made and never started has its turn yet");
    }
}
