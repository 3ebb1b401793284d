//! The messages, with the fields of `api.proto` in `k8s.io/kubelet/pkg/apis/pods/v1alpha1`. Pods are bytes there: a
//! `v1.Pod` in Kubernetes' protobuf.

use prost::{Enumeration, Message};

/// Asks for all pods.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodsRequest {}

/// All pods.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodsResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) pods: Vec<Vec<u8>>,
}

/// Asks for a pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GetPodRequest {
    #[prost(string, tag = "1")]
    pub(super) pod_uid: String,
}

/// The pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GetPodResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) pod: Vec<u8>,
}

/// Asks for all pods, and what becomes of them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchPodsRequest {}

/// What has become of a pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchPodsEvent {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(super) r#type: i32,
    /// Of a deleted one its name, namespace and UID; nothing once everything has been told.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) pod: Vec<u8>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    /// None.
    Unspecified = 0,
    /// A pod that was not told before.
    Added = 1,
    /// A pod that is other than it was told.
    Modified = 2,
    /// A pod that is gone.
    Deleted = 3,
    /// Every pod that there was has been told.
    InitialSyncComplete = 4,
}
