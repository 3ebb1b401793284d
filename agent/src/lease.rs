//! The node's lease: renewed every quarter of its duration, it tells the cluster that the node is alive.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::PostParams;
use tokio::time::{Instant, timeout};

use crate::back_off::BackOff;
use crate::client::{ApiServer, Failure, failure, message};

/// Where the leases of nodes are.
const NAMESPACE: &str = "kube-node-lease";
/// Waits after a failure: short enough that several tries fit into the time that is left of the lease.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(7));
/// A request without an answer is given up, and tried again on another connection.
const REQUEST: Duration = Duration::from_secs(10);

/// Whose lease it is.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Name of the Node.
    pub node_name: String,
    /// UID of the Node.
    pub node_uid: String,
    /// Life of the lease in seconds.
    pub seconds: u32,
}

/// Keeps the lease for ever.
pub async fn keep(server: &ApiServer, holder: &Holder) {
    let api: Api<Lease> = Api::namespaced(server.requests.clone(), NAMESPACE);
    let period = Duration::from_secs(u64::from(holder.seconds)) / 4;
    let mut known: Option<Lease> = None;
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let started = Instant::now();
        match timeout(REQUEST, renew(&api, holder, known.take())).await {
            Ok(Ok(lease)) => {
                known = Some(lease);
                back_off.reset();
                tokio::time::sleep_until(started + period).await;
            }
            Ok(Err(error)) => {
                tell(&back_off, &message(&error));
                back_off.wait().await;
            }
            // The time that a wait would take is over already.
            Err(_) => {
                tell(&back_off, "no answer");
                back_off.next_wait();
            }
        }
    }
}

/// Tells of an outage once, and then now and again.
fn tell(back_off: &BackOff, why: &str) {
    if back_off.failures() % 30 == 2 {
        tracing::warn!("cannot renew the node's lease, trying again: {why}");
    }
}

/// One renewal: a PUT of what we know the server to have, or of what it says it has.
async fn renew(
    api: &Api<Lease>,
    holder: &Holder,
    known: Option<Lease>,
) -> Result<Lease, kube::Error> {
    let params = PostParams::default();
    if let Some(known) = known {
        let lease = renewed(known, holder, Timestamp::now());
        match api.replace(&holder.node_name, &params, &lease).await {
            Err(error) if matches!(failure(&error), Failure::Conflict | Failure::NotFound) => {}
            result => return result,
        }
    }
    match api.get(&holder.node_name).await {
        Ok(found) => {
            let lease = renewed(found, holder, Timestamp::now());
            api.replace(&holder.node_name, &params, &lease).await
        }
        Err(error) if failure(&error) == Failure::NotFound => {
            api.create(
                &params,
                &renewed(Lease::default(), holder, Timestamp::now()),
            )
            .await
        }
        Err(error) => Err(error),
    }
}

/// The lease as it is to be.
fn renewed(mut lease: Lease, holder: &Holder, now: Timestamp) -> Lease {
    let meta: &mut ObjectMeta = &mut lease.metadata;
    meta.name = Some(holder.node_name.clone());
    meta.namespace = Some(NAMESPACE.into());
    meta.managed_fields = None;
    meta.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: holder.node_name.clone(),
        uid: holder.node_uid.clone(),
        ..OwnerReference::default()
    }]);
    let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(holder.node_name.clone());
    spec.lease_duration_seconds = i32::try_from(holder.seconds).ok();
    spec.renew_time = Some(MicroTime(now));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::{Answer, Fake};
    use serde_json::json;

    fn holder() -> Holder {
        Holder {
            node_name: "n1".into(),
            node_uid: "u".into(),
            seconds: 4,
        }
    }

    #[tokio::test]
    async fn a_lease_is_made_once_and_then_renewed() {
        let (fake, server) = Fake::start(|seen| match seen.method.as_str() {
            "GET" => Some(Answer::Status(404, "not found")),
            _ => Some(Answer::Object(
                json!({"metadata": {"name": "n1", "resourceVersion": "7"}}),
            )),
        })
        .await;
        let task = tokio::spawn(async move { keep(&server, &holder()).await });
        let seen = fake.until(|seen| seen.len() == 3).await;
        task.abort();
        let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
        assert_eq!(methods, ["GET", "POST", "PUT"]);
        assert_eq!(seen[1].body["spec"]["leaseDurationSeconds"], 4);
        assert_eq!(seen[1].body["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(seen[2].body["metadata"]["resourceVersion"], "7");
    }

    #[tokio::test]
    async fn a_conflict_is_settled_by_reading_again() {
        let mut conflicts = 1;
        let (fake, server) = Fake::start(move |seen| match seen.method.as_str() {
            "PUT" if conflicts > 0 => {
                conflicts -= 1;
                Some(Answer::Status(409, "modified"))
            }
            _ => Some(Answer::Object(
                json!({"metadata": {"name": "n1", "resourceVersion": "8"}}),
            )),
        })
        .await;
        let known = Lease::default();
        let api = Api::namespaced(server.requests.clone(), NAMESPACE);
        renew(&api, &holder(), Some(known)).await.unwrap();
        let methods: Vec<_> = fake
            .seen()
            .iter()
            .map(|seen| seen.method.to_string())
            .collect();
        assert_eq!(methods, ["PUT", "GET", "PUT"]);
    }
}
