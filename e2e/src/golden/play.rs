//! Lets a node run cases, all at once, and writes down what it says.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::PEER;
use super::case::{Act, Case};
use super::table::Blocks;
use super::words::{Lines, Plain};
use crate::cluster::Space;

/// How often everything is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// When a case's words are taken.
pub(super) trait Goal {
    /// Whether they are good now.
    fn is_met(&self, case: &Case, said: &Lines) -> bool;
    /// How long they have to stay the same, and good.
    fn quiet(&self) -> Duration;
    /// How long all of them may take.
    fn patience(&self) -> Duration;
}

/// A case on its way.
struct Scene<'a> {
    case: &'a Case,
    made: bool,
    acted: bool,
    over: bool,
    said: Lines,
    /// Since when it has said this.
    since: Instant,
}

/// Runs the cases on a node; what each says when its goal is met, or in the end.
///
/// # Errors
/// When the API server does not answer, or refuses a pod.
pub(super) fn play(
    space: &Space<'_>,
    node: &str,
    plain: &Plain,
    cases: &[Case],
    goal: &impl Goal,
) -> Result<Blocks> {
    let now = Instant::now();
    let mut scenes: Vec<Scene<'_>> = cases.iter().map(|case| Scene::new(case, now)).collect();
    let first: Vec<Value> = cases
        .iter()
        .filter(|case| case.after.is_none() && !case.is_static)
        .map(|case| case.on(node))
        .collect();
    space.apply(&json!({"apiVersion": "v1", "kind": "List", "items": first}))?;
    for case in cases.iter().filter(|case| case.is_static) {
        put_file(space, node, case)?;
    }
    let end = now + goal.patience();
    while Instant::now() < end && scenes.iter().any(|scene| !scene.over) {
        let said = look(space, plain)?;
        for at in 0..scenes.len() {
            let due = scenes[at].is_due(&scenes);
            scenes[at].go_on(space, node, &said, due, goal)?;
        }
        std::thread::sleep(LOOK);
    }
    let blocks = scenes
        .into_iter()
        .map(|scene| (scene.case.name.clone(), scene.said));
    Ok(blocks.collect())
}

impl<'a> Scene<'a> {
    fn new(case: &'a Case, since: Instant) -> Self {
        Self {
            case,
            made: case.after.is_none(),
            acted: case.act.is_none(),
            over: false,
            said: Lines::new(),
            since,
        }
    }

    /// Whether what it waits for has come.
    fn is_due(&self, scenes: &[Scene<'_>]) -> bool {
        self.case.after.is_none_or(|(other, line)| {
            let mut others = scenes.iter().filter(|scene| scene.case.name == other);
            others.any(|scene| begins(&scene.said, line))
        })
    }

    fn go_on(
        &mut self,
        space: &Space<'_>,
        node: &str,
        said: &Blocks,
        due: bool,
        goal: &impl Goal,
    ) -> Result<()> {
        if self.over {
            return Ok(());
        }
        if !self.made && due {
            space.apply(&self.case.on(node))?;
            self.made = true;
        }
        let said = said.get(&self.case.pod(node)).cloned().unwrap_or_default();
        if said != self.said {
            self.said = said;
            self.since = Instant::now();
        }
        if !self.acted && self.case.first.iter().all(|line| begins(&self.said, line)) {
            act(space, self.case)?;
            self.acted = true;
            self.since = Instant::now();
        }
        let quiet = self.since.elapsed() >= goal.quiet();
        self.over = self.acted && quiet && goal.is_met(self.case, &self.said);
        Ok(())
    }
}

/// Whether a line begins like this.
pub(super) fn begins(lines: &Lines, start: &str) -> bool {
    lines.iter().any(|line| line.starts_with(start))
}

fn act(space: &Space<'_>, case: &Case) -> Result<()> {
    match &case.act {
        None => Ok(()),
        Some(Act::Delete) => space
            .kubectl(&format!("delete pod {} --wait=false", case.name))
            .map(drop),
        Some(Act::Patch(subresource, patch)) => {
            let api: Api<Pod> = Api::namespaced(space.cluster().client().clone(), space.name());
            // The same words as in the manifests.
            let text = patch
                .to_string()
                .replace("REGISTRY", space.cluster().registry());
            let patch: Value = serde_json::from_str(&text)?;
            let params = PatchParams::default();
            let patch = Patch::Strategic(patch);
            let patched = match *subresource {
                "" => space
                    .cluster()
                    .block_on(api.patch(&case.name, &params, &patch)),
                name => {
                    let patched = api.patch_subresource(name, &case.name, &params, &patch);
                    space.cluster().block_on(patched)
                }
            };
            patched.map(drop).with_context(|| case.name.clone())
        }
    }
}

/// What has been said of every pod of the namespace.
fn look(space: &Space<'_>, plain: &Plain) -> Result<Blocks> {
    let client = space.cluster().client();
    let pods = ApiResource::erase::<Pod>(&());
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), space.name(), &pods);
    let events: Api<Event> = Api::namespaced(client.clone(), space.name());
    let params = ListParams::default();
    let pods = space.cluster().block_on(pods.list(&params))?;
    let events = space.cluster().block_on(events.list(&params))?.items;
    let mut blocks = Blocks::new();
    for pod in pods.items {
        let uid = uid_on_node(&pod);
        let status = pod.data.get("status").unwrap_or(&Value::Null);
        let mut lines = plain.status(status);
        lines.extend(plain.source(pod.metadata.annotations.iter().flatten()));
        // A pod of the same name may have been here before, and its events may come late.
        let own = |event: &&Event| is_of_node(event) && event.involved_object.uid == uid;
        lines.extend(events.iter().filter(own).map(|event| plain.event(event)));
        blocks.insert(pod.metadata.name.unwrap_or_default(), lines);
    }
    Ok(blocks)
}

/// The UID that the node knows the pod by; the mirror of a static one has another.
fn uid_on_node(pod: &DynamicObject) -> Option<String> {
    let annotations = pod.metadata.annotations.as_ref();
    let of_static = annotations.and_then(|all| all.get("kubernetes.io/config.hash"));
    of_static.or(pod.metadata.uid.as_ref()).cloned()
}

/// Whether a node's agent has recorded it.
fn is_of_node(event: &Event) -> bool {
    let source = event.source.as_ref();
    let component = source.and_then(|source| source.component.as_deref());
    component == Some("kubelet") && event.reporting_component.as_deref() == Some("kubelet")
}

/// The file of a static pod on a node.
fn file(space: &Space<'_>, node: &str, case: &Case) -> Result<PathBuf> {
    let lab = space.lab()?;
    let directory = match node {
        PEER => lab.peer().manifests(),
        _ => lab.node(node).manifests(),
    };
    Ok(directory.join(format!("golden-{}.json", case.name)))
}

fn put_file(space: &Space<'_>, node: &str, case: &Case) -> Result<()> {
    let mut manifest = case.manifest.clone();
    manifest["metadata"]["namespace"] = space.name().into();
    // Its UID is made of its text; one of its own keeps an earlier run's back-off and count of events away.
    let run = format!("{:?}", SystemTime::now());
    manifest["metadata"]["annotations"] = json!({"golden.hanok.example/run": run});
    let text = manifest
        .to_string()
        .replace("REGISTRY", space.cluster().registry());
    let file = file(space, node, case)?;
    let hidden = file.with_file_name(format!(".golden-{}", case.name));
    fs::write(&hidden, text).with_context(|| hidden.display().to_string())?;
    Ok(fs::rename(hidden, file)?)
}

/// Takes the files away, and lets deleted pods go whose last words have been read.
///
/// # Errors
/// When the API server refuses.
pub(super) fn release(space: &Space<'_>, node: &str, cases: &[Case]) -> Result<()> {
    for case in cases.iter().filter(|case| case.is_static) {
        let file = file(space, node, case)?;
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
    }
    let kept = cases
        .iter()
        .filter(|case| matches!(case.act, Some(Act::Delete)));
    for case in kept {
        let line = format!("patch pod {} --type=merge --patch", case.name);
        space.kubectl_with(&line, &[r#"{"metadata":{"finalizers":null}}"#])?;
    }
    Ok(())
}
