//! The Node object and its status, from facts. Pure.

mod difference;

use std::collections::BTreeMap;
use std::net::IpAddr;

use hanok_runtime::api::Image;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus,
    NodeSwapStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

pub use difference::{status_patch, tells};

use super::machine::Machine;
use crate::pod::network_not_ready;
use crate::quantity::Amount;

/// The Kubernetes version whose kubelet this node stands in for.
pub const KUBERNETES_VERSION: &str = "v1.37.2";

/// Says that volumes are attached by the controller.
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Features of the node that the control plane asks for by name, sorted.
const DECLARED_FEATURES: &[&str] = &[
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// The features that the node declares.
pub fn declared_features() -> Vec<String> {
    DECLARED_FEATURES
        .iter()
        .map(|name| (*name).to_owned())
        .collect()
}

/// What does not change while the agent runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Name of the Node.
    pub name: String,
    /// The machine's host name.
    pub hostname: String,
    /// The node's addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// The machine.
    pub machine: Machine,
    /// Most pods.
    pub max_pods: u32,
    /// What is taken off the capacity.
    pub reserved: BTreeMap<String, Amount>,
    /// Labels beside the standard ones.
    pub labels: BTreeMap<String, String>,
    /// Taints of a new Node.
    pub taints: Vec<Taint>,
    /// providerID of a new Node; empty for none.
    pub provider_id: String,
    /// Volumes are attached by the controller.
    pub attach_detach: bool,
    /// Port of the kubelet API.
    pub port: u16,
    /// RuntimeClass handlers.
    pub handlers: Vec<String>,
    /// Pods can have users of their own.
    pub user_namespaces: bool,
    /// Most images named in the status; none for all.
    pub max_images: Option<usize>,
}

/// What is looked at again every time.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Whether pods can get a network, or why not.
    pub network: Result<(), String>,
    /// Images in the store.
    pub images: Vec<Image>,
    /// When it was looked.
    pub at: Timestamp,
}

impl Facts {
    /// What pods can be given, by resource name.
    pub fn allocatable(&self) -> BTreeMap<String, Amount> {
        let mut amounts = self.machine.capacity(self.max_pods);
        for (name, amount) in &mut amounts {
            if let Some(reserved) = self.reserved.get(name) {
                *amount = amount.minus(*reserved);
            }
        }
        // Huge pages are memory that nobody else can have.
        let huge = self
            .machine
            .huge_pages
            .values()
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        if let Some(memory) = amounts.get_mut("memory") {
            *memory = memory.minus(Amount::units(i64::try_from(huge).unwrap_or(i64::MAX)));
        }
        amounts
    }

    /// The labels that every node has, and the operator's.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.standard_labels();
        for (key, value) in &self.labels {
            labels.insert(key.clone(), value.clone());
        }
        labels
    }

    /// The labels that every node has.
    pub fn standard_labels(&self) -> BTreeMap<String, String> {
        let arch = self.machine.architecture.as_str();
        [
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", arch),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", arch),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    /// The annotations that the node sets.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::new();
        if self.attach_detach {
            annotations.insert(ATTACH_DETACH.to_owned(), "true".to_owned());
        }
        annotations
    }
}

/// A Node that does not exist yet.
pub fn new_node(facts: &Facts, status: NodeStatus) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            labels: Some(facts.all_labels()),
            annotations: Some(facts.annotations()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(facts.taints.clone()).filter(|taints| !taints.is_empty()),
            provider_id: Some(facts.provider_id.clone()).filter(|id| !id.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// The status. Conditions that do not change keep their time of transition from `before`.
pub fn status(facts: &Facts, observed: &Observed, before: Option<&NodeStatus>) -> NodeStatus {
    let memory_first = |amounts: BTreeMap<String, Amount>| -> BTreeMap<String, Quantity> {
        amounts
            .into_iter()
            .map(|(name, amount)| (name.clone(), quantity(&name, amount)))
            .collect()
    };
    NodeStatus {
        addresses: Some(addresses(facts)),
        allocatable: Some(memory_first(facts.allocatable())),
        capacity: Some(memory_first(facts.machine.capacity(facts.max_pods))),
        conditions: Some(conditions(observed, before)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: i32::from(facts.port),
            }),
        }),
        declared_features: Some(
            DECLARED_FEATURES
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
        ),
        features: Some(NodeFeatures {
            supplemental_groups_policy: Some(true),
        }),
        images: Some(images(&observed.images, facts.max_images)),
        node_info: Some(node_info(facts)),
        runtime_handlers: Some(
            facts
                .handlers
                .iter()
                .map(|name| handler(name, facts))
                .collect(),
        ),
        ..NodeStatus::default()
    }
}

/// Memory is told in kibibytes, as everywhere; the rest in its canonical form.
fn quantity(name: &str, amount: Amount) -> Quantity {
    let units = amount.to_units();
    match name {
        "memory" | "ephemeral-storage" if units % 1024 == 0 => {
            Quantity(format!("{}Ki", units / 1024))
        }
        _ => Quantity(amount.to_string()),
    }
}

fn addresses(facts: &Facts) -> Vec<NodeAddress> {
    let address = |kind: &str, address: String| NodeAddress {
        type_: kind.into(),
        address,
    };
    let internal = facts
        .ips
        .iter()
        .map(|ip| address("InternalIP", ip.to_string()));
    internal
        .chain([address("Hostname", facts.hostname.clone())])
        .collect()
}

fn node_info(facts: &Facts) -> NodeSystemInfo {
    let machine = &facts.machine;
    NodeSystemInfo {
        architecture: machine.architecture.clone(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: format!("hanok://{}", env!("CARGO_PKG_VERSION")),
        kernel_version: machine.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: KUBERNETES_VERSION.into(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".into(),
        os_image: machine.os_image.clone(),
        swap: (machine.swap > 0).then(|| NodeSwapStatus {
            capacity: i64::try_from(machine.swap).ok(),
        }),
        system_uuid: machine.system_uuid.clone(),
        ..NodeSystemInfo::default()
    }
}

fn handler(name: &str, facts: &Facts) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(name.to_owned()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(true),
            user_namespaces: Some(facts.user_namespaces),
        }),
    }
}

/// The largest first, as the scheduler is most helped by these.
fn images(images: &[Image], most: Option<usize>) -> Vec<ContainerImage> {
    let mut images: Vec<&Image> = images.iter().collect();
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let shown = images.into_iter().take(most.unwrap_or(usize::MAX));
    shown
        .map(|image| ContainerImage {
            names: Some(
                image
                    .repo_digests
                    .iter()
                    .chain(&image.repo_tags)
                    .cloned()
                    .collect(),
            ),
            size_bytes: i64::try_from(image.size).ok(),
        })
        .filter(|image| image.names.as_ref().is_some_and(|names| !names.is_empty()))
        .collect()
}

/// The four conditions in their order, Ready last.
fn conditions(observed: &Observed, before: Option<&NodeStatus>) -> Vec<NodeCondition> {
    let ready = match &observed.network {
        Ok(()) => (
            "Ready",
            "True",
            "KubeletReady",
            "kubelet is posting ready status".to_owned(),
        ),
        Err(why) => ("Ready", "False", "KubeletNotReady", network_not_ready(why)),
    };
    let calm = |kind, reason, message: &str| (kind, "False", reason, message.to_owned());
    let all = [
        calm(
            "MemoryPressure",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        calm(
            "DiskPressure",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        calm(
            "PIDPressure",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        ready,
    ];
    let old = before
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let conditions = all.map(|(kind, status, reason, message)| {
        let same = old
            .iter()
            .find(|old| old.type_ == kind && old.status == status);
        let since = same.and_then(|old| old.last_transition_time.clone());
        NodeCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_heartbeat_time: Some(Time(observed.at)),
            last_transition_time: Some(since.unwrap_or(Time(observed.at))),
        }
    });
    conditions.into()
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
