//! The messages, with the fields of `api.proto` in `k8s.io/kubelet/pkg/apis/podresources/v1`. What nobody fills in yet is
//! here all the same: the numbers are the contract.

use prost::Message;

/// Asks for all pods.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodResourcesRequest {}

/// All pods.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) pod_resources: Vec<PodResources>,
}

/// Asks for a pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GetPodResourcesRequest {
    #[prost(string, tag = "1")]
    pub(super) pod_name: String,
    #[prost(string, tag = "2")]
    pub(super) pod_namespace: String,
}

/// The pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GetPodResourcesResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) pod_resources: Option<PodResources>,
}

/// Asks for what the node could give.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocatableResourcesRequest {}

/// What the node could give.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocatableResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) memory: Vec<ContainerMemory>,
}

/// What a pod has for itself.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PodResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) containers: Vec<ContainerResources>,
    #[prost(int64, repeated, tag = "4")]
    pub(super) cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    pub(super) memory: Vec<ContainerMemory>,
}

/// What a container has for itself. Claims (5) come with dynamic resource allocation.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "3")]
    pub(super) cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) memory: Vec<ContainerMemory>,
}

/// Memory or huge pages of some NUMA nodes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerMemory {
    #[prost(string, tag = "1")]
    pub(super) memory_type: String,
    #[prost(uint64, tag = "2")]
    pub(super) size: u64,
    #[prost(message, optional, tag = "3")]
    pub(super) topology: Option<TopologyInfo>,
}

/// Devices of a plugin.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(super) resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) device_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) topology: Option<TopologyInfo>,
}

/// Where on the machine something is.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TopologyInfo {
    #[prost(message, repeated, tag = "1")]
    pub(super) nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NumaNode {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}
