//! Makes a container's image present, by its pull policy.

use std::time::Duration;

use hanok_runtime::api::{self, Credentials, Image};
use hanok_runtime::image::reference::Reference;
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};
use tokio::time::Instant;
use tracing::{Instrument, info_span};

use super::start::StartError;
use crate::pod::back_off::go_duration;
use crate::pod::settings::Deps;
use crate::pod::{credentials, spec};
use crate::sinks::{EventKind, MountedVolumes};
use crate::volume;
use hanok_runtime::service::chain;

/// When to ask the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// The container's image, pulled if its policy says so.
pub(super) async fn ensure(
    deps: &Deps,
    pod: &Pod,
    container: &Container,
) -> Result<Image, StartError> {
    let ensured = present(deps, pod, container).await;
    if let Err(error) = &ensured {
        tell(deps, pod, container, error);
    }
    ensured
}

/// Says of the container why it is not started.
fn tell(deps: &Deps, pod: &Pod, container: &Container, error: &StartError) {
    let (StartError::Pull { reason, .. } | StartError::Failed { reason, .. }) = error else {
        return;
    };
    let message = format!("Error: {reason}");
    deps.event(pod, container, EventKind::Warning, "Failed", &message);
}

/// The image, or why there is none.
async fn present(deps: &Deps, pod: &Pod, container: &Container) -> Result<Image, StartError> {
    let reference = container.image.as_deref().unwrap_or_default();
    if let Err(error) = reference.parse::<Reference>() {
        let error = api::Error::InvalidReference {
            reference: reference.to_owned(),
            message: error.to_string(),
        };
        return Err(inspect_failed(deps, pod, container, &error));
    }
    let policy = policy(container.image_pull_policy.as_deref(), reference);
    if policy != PullPolicy::Always {
        let found = deps.images.image_status(reference).await;
        if let Some(image) = found.map_err(|error| inspect_failed(deps, pod, container, &error))? {
            let message = format!(
                "Container image \"{reference}\" already present on machine and can be accessed by the pod"
            );
            deps.event(pod, container, EventKind::Normal, "Pulled", &message);
            return Ok(image);
        }
        if policy == PullPolicy::Never {
            let message =
                format!("Container image \"{reference}\" is not present with pull policy of Never");
            deps.event(
                pod,
                container,
                EventKind::Warning,
                "ErrImageNeverPull",
                &message,
            );
            return Err(StartError::failed("ErrImageNeverPull", message));
        }
    }
    pull(deps, pod, container, reference).await
}

/// The volumes of the container that are images, by name.
pub(in crate::pod) fn of_volumes<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let volumes = spec::spec(pod).and_then(|spec| spec.volumes.as_deref());
    let volumes = volumes.unwrap_or_default().iter();
    volumes
        .filter(|volume| mounts.iter().any(|mount| mount.name == volume.name))
        .filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
}

/// Mounts the images that the container has as volumes, each pulled by its own policy; tells where they are.
pub(super) async fn volumes(
    deps: &Deps,
    pod: &Pod,
    container: &Container,
) -> Result<MountedVolumes, StartError> {
    let mut mounted = MountedVolumes::new();
    for (volume, source) in of_volumes(pod, container) {
        // What is said of the image is said of the pod: its events name no container.
        let waiting = Container {
            image: source.reference.clone(),
            image_pull_policy: source.pull_policy.clone(),
            ..Container::default()
        };
        let image = match present(deps, pod, &waiting).await {
            Ok(image) => image,
            Err(error) => {
                tell(deps, pod, container, &error);
                return Err(error);
            }
        };
        let failed = |message| StartError::failed("CreateContainerError", message);
        // Before it is mounted, which is one at a time.
        let unpacked = unpack(deps, &image).await;
        unpacked.map_err(|error| failed(chain(&error)))?;
        let dir = deps.settings.pod_dir(&spec::uid(pod));
        let path = volume::image_path(&dir, volume)
            .ok_or_else(|| failed(format!("{volume:?} is no name of a volume")))?;
        let done = deps.images.mount_image(&image.id, &path).await;
        done.map_err(|error| failed(chain(&error)))?;
        mounted.insert(volume.to_owned(), path);
    }
    Ok(mounted)
}

/// Unpacks the image, unless it is: one that was not pulled here may have come as it is. The container would be made
/// no sooner without this, but nothing may interrupt that.
pub(super) async fn unpack(deps: &Deps, image: &Image) -> Result<(), api::Error> {
    deps.images.unpack_image(&image.id).await
}

/// Pulls the image.
async fn pull(
    deps: &Deps,
    pod: &Pod,
    container: &Container,
    reference: &str,
) -> Result<Image, StartError> {
    let waiting = Instant::now();
    let message = format!("Pulling image \"{reference}\"");
    deps.event(pod, container, EventKind::Normal, "Pulling", &message);
    let (credentials, missing) = pull_credentials(deps, pod, reference).await;
    let began = Instant::now();
    let pulled = deps
        .images
        .pull_image(reference, &credentials)
        .instrument(info_span!("image.pull", container = %container.name))
        .await;
    match pulled {
        Ok(image) => {
            let message = format!(
                "Successfully pulled image \"{reference}\" in {} ({} including waiting). Image size: {} bytes.",
                go_duration(whole_millis(began.elapsed())),
                go_duration(whole_millis(waiting.elapsed())),
                image.size
            );
            deps.event(pod, container, EventKind::Normal, "Pulled", &message);
            Ok(image)
        }
        Err(error @ api::Error::InvalidReference { .. }) => {
            Err(inspect_failed(deps, pod, container, &error))
        }
        Err(error) => {
            let cause = chain(&error);
            if !missing.is_empty() {
                let message = format!(
                    "Unable to retrieve some image pull secrets ({}); attempting to pull the image may \
                     not succeed.",
                    missing.join(", ")
                );
                let reason = "FailedToRetrieveImagePullSecret";
                deps.event(pod, container, EventKind::Warning, reason, &message);
            }
            let message = format!("Failed to pull image \"{reference}\": {cause}");
            deps.event(pod, container, EventKind::Warning, "Failed", &message);
            Err(StartError::Pull {
                image: reference.to_owned(),
                reason: "ErrImagePull",
                message: cause,
            })
        }
    }
}

/// A reference that does not parse, or a store that does not answer.
fn inspect_failed(deps: &Deps, pod: &Pod, container: &Container, error: &api::Error) -> StartError {
    let reference = container.image.as_deref().unwrap_or_default();
    let (reason, message) = match error {
        api::Error::InvalidReference { .. } => (
            "InvalidImageName",
            format!(
                "Failed to apply default image tag \"{reference}\": {}",
                chain(error)
            ),
        ),
        _ => (
            "ImageInspectError",
            format!("Failed to inspect image \"{reference}\": {}", chain(error)),
        ),
    };
    deps.event(
        pod,
        container,
        EventKind::Warning,
        "InspectFailed",
        &message,
    );
    StartError::failed(reason, message)
}

/// Credentials from the pod's pull secrets, and the names of those that could not be had.
async fn pull_credentials(
    deps: &Deps,
    pod: &Pod,
    reference: &str,
) -> (Vec<Credentials>, Vec<String>) {
    let named = spec::spec(pod).and_then(|spec| spec.image_pull_secrets.as_ref());
    let (mut secrets, mut missing) = (Vec::new(), Vec::new());
    for reference in named.into_iter().flatten() {
        match deps
            .objects
            .secret(spec::namespace(pod), &reference.name)
            .await
        {
            Ok(secret) => secrets.push(secret),
            Err(_) => missing.push(reference.name.clone()),
        }
    }
    (credentials::for_image(reference, &secrets), missing)
}

/// The policy; without one, `:latest` and no tag are always asked for.
fn policy(text: Option<&str>, reference: &str) -> PullPolicy {
    match text {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some(_) => PullPolicy::IfNotPresent,
        None => {
            let name = reference.rsplit('/').next().unwrap_or_default();
            let tagged =
                name.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
            if tagged {
                PullPolicy::IfNotPresent
            } else {
                PullPolicy::Always
            }
        }
    }
}

/// Messages need no more.
fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_is_always_pulled_by_default() {
        use PullPolicy::{Always, IfNotPresent, Never};
        let table = [
            (None, "busybox", Always),
            (None, "busybox:latest", Always),
            (None, "registry:5000/busybox", Always),
            (None, "registry:5000/busybox:1", IfNotPresent),
            (None, "busybox@sha256:00", IfNotPresent),
            (Some("Always"), "busybox:1", Always),
            (Some("Never"), "busybox", Never),
            (Some("IfNotPresent"), "busybox", IfNotPresent),
        ];
        for (text, reference, want) in table {
            assert_eq!(policy(text, reference), want, "{text:?} {reference}");
        }
    }
}
