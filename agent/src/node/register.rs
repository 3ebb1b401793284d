//! Makes the Node object, or brings one that is there up to date.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use super::status::{Facts, new_node};
use crate::back_off::BackOff;
use crate::client::{Failure, failure, message};

/// First and longest wait after a failure, as the kubelet has them.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7));

/// Tries until the Node exists; gives it as the server has it. With `create` false it waits for somebody else to
/// make it.
pub(super) async fn register(
    api: &Api<Node>,
    facts: &Facts,
    status: &NodeStatus,
    create: bool,
) -> Node {
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    loop {
        match once(api, facts, status, create).await {
            Ok(Some(node)) => return node,
            Ok(None) => {
                if back_off.failures() == 3 {
                    tracing::info!(node = facts.name, "waiting for somebody to create the node");
                }
            }
            Err(error) => {
                if back_off.failures() % 10 == 2 {
                    let why = message(&error);
                    tracing::warn!(
                        node = facts.name,
                        "cannot register the node, trying again: {why}"
                    );
                }
            }
        }
        back_off.wait().await;
    }
}

/// One try; none when there is no Node and it is not for us to make it.
async fn once(
    api: &Api<Node>,
    facts: &Facts,
    status: &NodeStatus,
    create: bool,
) -> Result<Option<Node>, kube::Error> {
    match api.get(&facts.name).await {
        Ok(found) => match changes(facts, &found) {
            None => Ok(Some(found)),
            Some(patch) => {
                let patch = Patch::Merge(patch);
                api.patch(&facts.name, &PatchParams::default(), &patch)
                    .await
                    .map(Some)
            }
        },
        Err(error) if failure(&error) == Failure::NotFound && create => {
            let node = new_node(facts, status.clone());
            let made = api.create(&PostParams::default(), &node).await?;
            tracing::info!(node = facts.name, "registered");
            Ok(Some(made))
        }
        Err(error) if failure(&error) == Failure::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is to be changed in a Node that exists: standard labels and annotations are set right, the operator's labels
/// are added where they are missing. Taints are the cluster's from now on.
fn changes(facts: &Facts, found: &Node) -> Option<Value> {
    let none = BTreeMap::new();
    let labels = found.metadata.labels.as_ref().unwrap_or(&none);
    let annotations = found.metadata.annotations.as_ref().unwrap_or(&none);
    let mut wanted = Map::new();
    for (key, value) in facts.standard_labels() {
        if labels.get(&key) != Some(&value) {
            wanted.insert(key, json!(value));
        }
    }
    for (key, value) in &facts.labels {
        if !labels.contains_key(key) {
            wanted.insert(key.clone(), json!(value));
        }
    }
    let wrong = |(key, value): &(String, String)| annotations.get(key) != Some(value);
    let noted: BTreeMap<_, _> = facts.annotations().into_iter().filter(wrong).collect();
    if wanted.is_empty() && noted.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"labels": wanted, "annotations": noted}}))
}
