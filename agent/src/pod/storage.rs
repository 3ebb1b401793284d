//! What a pod may write to the node's disk, and what is said of one that has written more. Pure.
//!
//! Three limits, in the order in which they are looked at: `sizeLimit` of an emptyDir on disk, `ephemeral-storage` of
//! all containers together, and that of each. A volume in memory is limited by the kernel.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::spec::{self, ContainerKind};
use super::{admit, resources};
use crate::quantity::Amount;

/// The resource.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Bytes on disk, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// In emptyDir volumes on disk, by their names.
    pub(super) volumes: BTreeMap<String, u64>,
    /// In the writable layers and logs of containers that run, by their names.
    pub(super) containers: BTreeMap<String, u64>,
}

/// Whether anything limits the pod. One that the node cannot do without is not ended for it.
pub(super) fn is_limited(pod: &Pod) -> bool {
    let size = |volume: &Volume| size_limit(volume).is_some();
    let limited = volumes(pod).any(size) || resources::storage_limit(pod).is_some();
    limited && !admit::is_critical(pod)
}

/// Names of the volumes that take the node's disk.
pub(super) fn volumes_on_disk(pod: &Pod) -> impl Iterator<Item = &str> {
    volumes(pod).map(|volume| volume.name.as_str())
}

/// What is said of a pod that has written too much; none of any other.
pub(super) fn exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    volume(pod, usage)
        .or_else(|| sum(pod, usage))
        .or_else(|| container(pod, usage))
}

fn volume(pod: &Pod, usage: &Usage) -> Option<String> {
    let found = volumes(pod).find_map(|volume| {
        let limit = size_limit(volume)?;
        let used = usage.volumes.get(&volume.name)?;
        is_over(*used, amount(limit)?).then_some((volume, limit))
    });
    let (volume, limit) = found?;
    let (name, limit) = (&volume.name, &limit.0);
    Some(format!(
        "Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "
    ))
}

fn sum(pod: &Pod, usage: &Usage) -> Option<String> {
    let limit = resources::storage_limit(pod)?;
    let all = usage.volumes.values().chain(usage.containers.values());
    let used = all.fold(0_u64, |sum, used| sum.saturating_add(*used));
    let of = spec::containers(pod).find_map(own_limit)?;
    let shown = limit.like(of);
    is_over(used, limit).then(|| {
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {shown}. ")
    })
}

fn container(pod: &Pod, usage: &Usage) -> Option<String> {
    let sidecars = spec::init_containers(pod).iter();
    let sidecars =
        sidecars.filter(|container| spec::init_kind(container) == ContainerKind::Sidecar);
    let mut containers = spec::app_containers(pod).iter().chain(sidecars);
    let (name, limit) = containers.find_map(|container| {
        let limit = own_limit(container)?;
        let used = usage.containers.get(&container.name)?;
        is_over(*used, amount(limit)?).then_some((&container.name, &limit.0))
    })?;
    Some(format!(
        "Container {name} exceeded its local ephemeral storage limit \"{limit}\". "
    ))
}

/// The emptyDirs on disk.
fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = spec::spec(pod).and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().filter(|volume| {
        let empty = volume.empty_dir.as_ref();
        empty.is_some_and(|empty| empty.medium.as_deref().unwrap_or_default().is_empty())
    })
}

fn size_limit(volume: &Volume) -> Option<&Quantity> {
    let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
    amount(limit).map(|_| limit)
}

fn own_limit(container: &Container) -> Option<&Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let limit = limits.get(EPHEMERAL_STORAGE)?;
    amount(limit).map(|_| limit)
}

/// A limit; zero is none.
fn amount(limit: &Quantity) -> Option<Amount> {
    let limit = Amount::try_from(limit).ok()?;
    (limit > Amount::default()).then_some(limit)
}

fn is_over(used: u64, limit: Amount) -> bool {
    Amount::units(i64::try_from(used).unwrap_or(i64::MAX)) > limit
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::sample;

    fn usage(volumes: &[(&str, u64)], containers: &[(&str, u64)]) -> Usage {
        let all = |list: &[(&str, u64)]| {
            let named = list
                .iter()
                .map(|(name, kib)| ((*name).to_owned(), kib << 10));
            named.collect()
        };
        Usage {
            volumes: all(volumes),
            containers: all(containers),
        }
    }

    fn pod(limits: [Option<&str>; 2], volume: Value) -> Pod {
        let container = |(name, limit): (&str, Option<&str>)| {
            let limits = limit.map(|limit| json!({"limits": {EPHEMERAL_STORAGE: limit}}));
            json!({"name": name, "image": "i:1", "resources": limits})
        };
        let containers: Vec<_> = ["a", "b"].into_iter().zip(limits).map(container).collect();
        let mut volume = volume;
        volume["name"] = "v".into();
        sample::from(json!({"containers": containers, "volumes": [volume]}))
    }

    #[test]
    fn only_pods_with_a_limit_are_looked_at() {
        for (limits, volume, expected) in [
            ([None, None], json!({"emptyDir": {}}), false),
            ([None, None], json!({"emptyDir": {"sizeLimit": "0"}}), false),
            (
                [None, None],
                json!({"emptyDir": {"sizeLimit": "1Mi"}}),
                true,
            ),
            (
                [None, None],
                json!({"emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}}),
                false,
            ),
            (
                [None, Some("1Gi")],
                json!({"hostPath": {"path": "/"}}),
                true,
            ),
        ] {
            let mut pod = pod(limits, volume.clone());
            assert_eq!(is_limited(&pod), expected, "{limits:?} {volume}");
            pod.spec.as_mut().expect("a spec").priority = Some(2_000_000_000);
            assert!(!is_limited(&pod), "a critical one");
        }
    }

    #[test]
    fn the_first_limit_that_is_exceeded_is_told() {
        let volume = json!({"emptyDir": {"sizeLimit": "1Mi"}});
        let of_volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ";
        let of_pod =
            "Pod ephemeral local storage usage exceeds the total limit of containers 1536Ki. ";
        let of_container = "Container b exceeded its local ephemeral storage limit \"512Ki\". ";
        let pod = pod([Some("1Mi"), Some("512Ki")], volume);
        for (volumes, containers, expected) in [
            (&[][..], &[][..], None),
            (&[("v", 1024)], &[("a", 100), ("b", 412)], None),
            (&[("v", 1025)], &[("a", 9999)], Some(of_volume)),
            (&[("v", 1024)], &[("a", 100), ("b", 413)], Some(of_pod)),
            (&[("v", 0)], &[("a", 100), ("b", 513)], Some(of_container)),
        ] {
            let usage = usage(volumes, containers);
            assert_eq!(exceeded(&pod, &usage).as_deref(), expected, "{usage:?}");
        }
    }
}
