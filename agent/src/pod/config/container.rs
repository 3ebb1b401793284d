//! The runtime's configuration of one container. Pure: what had to be read or resolved is given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hanok_runtime::api::{ContainerConfig, ContainerId, Image, Mount, NamespaceMode, Resources};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::security;
use crate::env::expand::{Variables, expand_words};
use crate::pod::back_off::Step;
use crate::pod::settings::Settings;
use crate::pod::{labels, memory, resize, resources, spec};

/// The path of the termination message when the container names none.
const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";

/// What a container is made from.
#[derive(Debug)]
pub struct Ingredients<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container in it.
    pub container: &'a Container,
    /// The node's choices.
    pub settings: &'a Settings,
    /// Its image.
    pub image: &'a Image,
    /// Its restart count.
    pub attempt: u32,
    /// The back-off after this run.
    pub back_off: Option<Step>,
    /// Its environment.
    pub envs: Vec<(String, String)>,
    /// Volumes and files.
    pub mounts: Vec<Mount>,
    /// The container whose processes it sees.
    pub target: Option<ContainerId>,
}

/// Path in the container of its termination message.
pub fn message_path(container: &Container) -> &str {
    let path = container.termination_message_path.as_deref();
    path.filter(|path| !path.is_empty())
        .unwrap_or(DEFAULT_MESSAGE_PATH)
}

/// Host path of one run's termination message.
pub fn message_file(pod_dir: &Path, container: &str, attempt: u32) -> PathBuf {
    pod_dir
        .join("containers")
        .join(container)
        .join(attempt.to_string())
}

/// Makes the configuration. The error is what the user reads.
pub fn config(from: Ingredients<'_>) -> Result<ContainerConfig, String> {
    let Ingredients {
        pod,
        container,
        settings,
        image,
        attempt,
        ..
    } = from;
    let context = security::Context {
        image_user: &image.user,
        seccomp_dir: &settings.seccomp_dir,
        seccomp_default: settings.seccomp_default,
    };
    let mut security = security::security_context(pod, container, &context)?;
    security.pid = from.target.map(NamespaceMode::Target);
    let (command, args) = words(container, &from.envs)?;
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt,
        image: image.id.clone(),
        image_reference: container.image.clone().unwrap_or_default(),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts: from.mounts,
        devices: Vec::new(),
        log_path: PathBuf::from(&container.name).join(format!("{attempt}.log")),
        log_max_size: settings.log_max_size,
        log_max_files: settings.log_max_files,
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        stop_signal: lifecycle_signal(container),
        resources: limits(pod, container, settings),
        security,
        labels: labels::container_labels(pod, &container.name),
        annotations: annotations(pod, container, settings, attempt, from.back_off),
        envs: from.envs,
    })
}

/// The container's command and arguments, with its variables in them.
fn words(
    container: &Container,
    envs: &[(String, String)],
) -> Result<(Vec<String>, Vec<String>), String> {
    let command = container.command.as_deref().unwrap_or_default();
    let args = container.args.as_deref().unwrap_or_default();
    let envs = envs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let variables = Variables::of(command.iter().chain(args), envs);
    let expanded = |what, words: &[String]| {
        expand_words(what, words, &variables).map_err(|error| error.to_string())
    };
    Ok((expanded("command", command)?, expanded("args", args)?))
}

/// The signal that the container is to be stopped by; empty for its image's.
fn lifecycle_signal(container: &Container) -> String {
    let lifecycle = container.lifecycle.as_ref();
    lifecycle
        .and_then(|lifecycle| lifecycle.stop_signal.clone())
        .unwrap_or_default()
}

fn limits(pod: &Pod, container: &Container, settings: &Settings) -> Resources {
    let mut limits = resources::container_resources(pod, container, settings.node_memory);
    for size in &settings.huge_page_sizes {
        // Who has no limit may have none of them.
        limits.hugepages.entry(size.clone()).or_default();
    }
    memory::add(
        &mut limits,
        pod,
        container,
        settings.node_memory,
        &settings.memory,
    );
    limits
}

/// What a new agent needs to know of the container.
fn annotations(
    pod: &Pod,
    container: &Container,
    settings: &Settings,
    attempt: u32,
    back_off: Option<Step>,
) -> BTreeMap<String, String> {
    let file = message_file(&settings.pod_dir(&spec::uid(pod)), &container.name, attempt);
    let policy = container
        .termination_message_policy
        .as_deref()
        .unwrap_or("File");
    let entries = [
        (labels::HASH, labels::container_hash(container)),
        (labels::RESTART_COUNT, attempt.to_string()),
        (
            labels::TERMINATION_MESSAGE_PATH,
            message_path(container).to_owned(),
        ),
        (
            labels::TERMINATION_MESSAGE_FILE,
            file.to_string_lossy().into_owned(),
        ),
        (labels::TERMINATION_MESSAGE_POLICY, policy.to_owned()),
        (
            labels::GRACE_PERIOD,
            spec::grace_period(pod).as_secs().to_string(),
        ),
    ];
    let back_off = back_off.map(|step| (labels::BACK_OFF, step.annotation()));
    let asked = resize::memory_request(container);
    let asked = asked.map(|bytes| (labels::MEMORY_REQUEST, bytes.to_string()));
    let entries = entries.into_iter().chain(back_off).chain(asked);
    entries
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::json;

    fn image() -> Image {
        Image {
            id: "sha256:aa".into(),
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            size: 1,
            user: String::new(),
            stop_signal: String::new(),
            pinned: false,
        }
    }

    #[test]
    fn a_container_without_a_limit_has_no_huge_pages() {
        let pod = sample::from(json!({"containers": [{"name": "c", "image": "i:1",
            "resources": {"limits": {"hugepages-2Mi": "4Mi"}}}]}));
        let mut settings = Settings::new("/r/pods".into(), "/l".into(), "/k".into());
        settings.huge_page_sizes = vec!["2MB".to_owned(), "1GB".to_owned()];
        let limits = limits(&pod, &spec::app_containers(&pod)[0], &settings);
        let want = [("1GB".to_owned(), 0), ("2MB".to_owned(), 4 << 20)];
        assert_eq!(limits.hugepages, want.into());
    }

    #[test]
    fn a_container_carries_all_that_a_new_agent_needs() {
        let pod = sample::from(json!({
            "terminationGracePeriodSeconds": 7,
            "containers": [{"name": "c", "image": "i:1", "command": ["$(SHELL)", "$$(X)"], "args": ["$(NO)"],
                "terminationMessagePolicy": "FallbackToLogsOnError", "lifecycle": {"stopSignal": "SIGUSR1"}}]}));
        let config = config(Ingredients {
            pod: &pod,
            container: &spec::app_containers(&pod)[0],
            settings: &Settings::new("/r/pods".into(), "/l".into(), "/k".into()),
            image: &image(),
            attempt: 3,
            back_off: Some(Step {
                delay: std::time::Duration::from_secs(20),
                key: 1,
            }),
            envs: vec![("SHELL".into(), "/bin/sh".into())],
            mounts: Vec::new(),
            target: None,
        })
        .expect("a configuration");
        assert_eq!(config.stop_signal, "SIGUSR1");
        assert_eq!(config.command, ["/bin/sh", "$(X)"]);
        assert_eq!(config.args, ["$(NO)"]);
        assert_eq!(config.log_path, Path::new("c/3.log"));
        let of = |key: &str| config.annotations[key].as_str();
        assert_eq!(of(labels::RESTART_COUNT), "3");
        assert_eq!(of(labels::GRACE_PERIOD), "7");
        assert_eq!(of(labels::TERMINATION_MESSAGE_PATH), "/dev/termination-log");
        assert_eq!(
            of(labels::TERMINATION_MESSAGE_POLICY),
            "FallbackToLogsOnError"
        );
        let file = format!("/r/pods/{}/containers/c/3", sample::UID);
        assert_eq!(of(labels::TERMINATION_MESSAGE_FILE), file);
        assert_eq!(of(labels::BACK_OFF), "20000 0000000000000001");
        assert_eq!(config.labels[labels::CONTAINER_NAME], "c");
    }
}
