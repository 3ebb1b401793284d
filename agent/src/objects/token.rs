//! Tokens of pods' service accounts: bound to the pod, kept until 80 % of their life is over.
//!
//! The time that a token lives counts from when it was asked for, by whichever clock is ahead: that of the wall, which
//! somebody may set, and which may differ from the server's; and the machine's own, which stands still while it sleeps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hanok_runtime::api::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1 as auth;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use crate::back_off::BackOff;
use crate::client::{ApiServer, message};
use crate::sinks::{ObjectError, Token, TokenRequest};

/// A token is renewed after a day even when it lives longer.
const LONGEST_USE: Duration = Duration::from_secs(24 * 3600);

/// Waits between tries of a pod that the server does not know yet, or not to be ours, and how many there are.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// See [`RETRY`].
const TRIES: u32 = 9;

/// Why there is no token.
enum Refused {
    /// The server does not let us, or has no such pod; perhaps not yet: it looks into a copy that follows what it stores.
    PerhapsNotYet(String),
    /// Anything else.
    Otherwise(String),
}

/// Which token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    pod: PodUid,
    audience: String,
    seconds: i64,
}

/// A token and when to renew it.
#[derive(Debug, Clone)]
struct Kept {
    token: Token,
    renewal: Renewal,
}

/// When a token is renewed.
#[derive(Debug, Clone, Copy)]
struct Renewal {
    asked: (Timestamp, Instant),
    after: Duration,
}

impl Renewal {
    /// After 80 % of the token's life, and after a day at the latest. The life that the server names counts; when the
    /// token is to expire sooner by this machine's clock, that does.
    fn new(asked: (Timestamp, Instant), expires_at: Timestamp, named: Option<i64>) -> Self {
        let named = named.filter(|seconds| *seconds > 0);
        let named = named.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
        let shown = Duration::try_from(expires_at.duration_since(asked.0)).ok();
        let life = match (named, shown) {
            (Some(named), Some(shown)) if !shown.is_zero() => named.min(shown),
            (Some(named), _) => named,
            (None, shown) => shown.unwrap_or_default(),
        };
        let after = (life / 5 * 4).min(LONGEST_USE);
        Self { asked, after }
    }

    fn is_due(&self, now: (Timestamp, Instant)) -> bool {
        let by_wall = Duration::try_from(now.0.duration_since(self.asked.0)).unwrap_or_default();
        let own = now.1.saturating_duration_since(self.asked.1);
        by_wall.max(own) >= self.after
    }
}

/// Tokens by pod and audience. Callers that ask at once for the same one share one request.
#[derive(Debug)]
pub(super) struct Tokens {
    server: ApiServer,
    kept: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<Option<Kept>>>>>,
}

impl Tokens {
    pub(super) fn new(server: ApiServer) -> Self {
        Self {
            server,
            kept: Mutex::default(),
        }
    }

    /// A valid token. One that should be renewed and cannot be is given out for as long as it is valid.
    pub(super) async fn get(&self, request: &TokenRequest) -> Result<Token, ObjectError> {
        let slot = self.slot(request);
        let mut kept = slot.lock().await;
        self.fill(request, &mut kept).await
    }

    /// Fetches the token for whoever will ask for it, after a wait. Who asks meanwhile waits as well.
    pub(super) async fn hold(&self, request: &TokenRequest, wait: Duration) {
        let slot = self.slot(request);
        let mut kept = slot.lock().await;
        tokio::time::sleep(wait).await;
        // A failure is told to whoever asks for the token in earnest.
        let _ = self.fill(request, &mut kept).await;
    }

    fn slot(&self, request: &TokenRequest) -> Arc<tokio::sync::Mutex<Option<Kept>>> {
        let key = Key {
            pod: PodUid(request.pod.metadata.uid.clone().unwrap_or_default()),
            audience: request.audience.clone(),
            seconds: request.expiration_seconds,
        };
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key).or_default().clone()
    }

    /// Makes sure of a token in the slot.
    async fn fill(
        &self,
        request: &TokenRequest,
        kept: &mut Option<Kept>,
    ) -> Result<Token, ObjectError> {
        let now = (Timestamp::now(), Instant::now());
        if let Some(kept) = kept.as_ref().filter(|kept| !kept.renewal.is_due(now)) {
            return Ok(kept.token.clone());
        }
        match self.ask_again(request, now).await {
            Ok(fresh) => Ok(kept.insert(fresh).token.clone()),
            Err(error) => {
                let old = kept.as_ref().map(|kept| kept.token.clone());
                old.filter(|token| now.0 < token.expires_at).ok_or(error)
            }
        }
    }

    /// Asks, and again a little later when the server does not know yet that the pod is ours.
    async fn ask_again(
        &self,
        request: &TokenRequest,
        now: (Timestamp, Instant),
    ) -> Result<Kept, ObjectError> {
        let mut back_off = BackOff::new(RETRY.0, RETRY.1);
        loop {
            match self.ask(request, now).await {
                Ok(kept) => return Ok(kept),
                Err(Refused::PerhapsNotYet(_)) if back_off.failures() < TRIES => {
                    back_off.wait().await;
                }
                Err(Refused::PerhapsNotYet(message) | Refused::Otherwise(message)) => {
                    return Err(ObjectError::Other(message));
                }
            }
        }
    }

    /// Asks the API server for a token.
    async fn ask(
        &self,
        request: &TokenRequest,
        now: (Timestamp, Instant),
    ) -> Result<Kept, Refused> {
        let pod = &request.pod;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let account = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref());
        let account = account.filter(|name| !name.is_empty()).unwrap_or("default");
        let api: Api<ServiceAccount> = Api::namespaced(self.server.requests.clone(), namespace);
        let body = auth::TokenRequest {
            spec: Some(auth::TokenRequestSpec {
                audiences: (!request.audience.is_empty()).then(|| vec![request.audience.clone()]),
                bound_object_ref: Some(auth::BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                expiration_seconds: Some(request.expiration_seconds),
                ..auth::TokenRequestSpec::default()
            }),
            ..auth::TokenRequest::default()
        };
        let answer = api
            .create_token_request(account, &PostParams::default(), &body)
            .await;
        let answer = answer.map_err(|error| {
            let message = format!("failed to fetch token: {}", message(&error));
            match is_perhaps_not_yet(&error) {
                true => Refused::PerhapsNotYet(message),
                false => Refused::Otherwise(message),
            }
        })?;
        let named = answer
            .spec
            .as_ref()
            .and_then(|spec| spec.expiration_seconds);
        let (token, expires_at) = answer
            .status
            .and_then(|status| Some((status.token?, status.expiration_timestamp?.0)))
            .ok_or_else(|| {
                let message = "failed to fetch token: the server's answer holds none";
                Refused::Otherwise(message.into())
            })?;
        Ok(Kept {
            renewal: Renewal::new(now, expires_at, named),
            token: Token { token, expires_at },
        })
    }

    /// Forgets the pod's tokens.
    pub(super) fn forget(&self, pod: &PodUid) {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|key, _| key.pod != *pod);
    }
}

/// What a server says that has not yet heard of the pod, of its node, or of it having been made anew. Its other
/// refusals are for good.
const NOT_YET: [&str; 3] = [
    "no relationship found",
    "bound to a pod scheduled on a different node",
    "does not match the UID in record",
];

/// Whether the server does not know the pod, or not to be ours. That there is no such account, it says from what it stores.
fn is_perhaps_not_yet(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let kind = status.details.as_ref().map(|details| details.kind.as_str());
    match status.code {
        403 => NOT_YET.iter().any(|words| status.message.contains(words)),
        404 => kind != Some("serviceaccounts"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn only_what_the_server_may_still_come_to_know_is_asked_for_again() {
        let lags = "no relationship found between node 'n' and this object";
        let denied = "user \"system:node:n\" cannot create resource \"serviceaccounts/token\"";
        let table = [
            (404, "pod", "", true),
            (404, "pods", "", true),
            (403, "serviceaccounts", lags, true),
            (403, "serviceaccounts", denied, false),
            (404, "serviceaccounts", "", false),
            (400, "pods", "", false),
        ];
        for (code, kind, message, again) in table {
            let details = serde_json::json!({"kind": kind});
            let status = serde_json::json!({"code": code, "message": message, "details": details});
            let status = serde_json::from_value(status).unwrap();
            let error = kube::Error::Api(Box::new(status));
            assert_eq!(is_perhaps_not_yet(&error), again, "{code} {kind}");
        }
    }

    #[test]
    fn a_token_is_renewed_at_four_fifths_of_its_life_and_after_a_day_at_the_latest() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let asked = (now, Instant::now());
        // The life that the server names, what this machine's clock makes of it, and the time to the renewal.
        for (named, shown, wait) in [
            (None, 3600, 2880),
            (None, 600, 480),
            (None, 10 * 86_400, 86_400),
            (None, -5, 0),
            (Some(3607), 3607, 2885),
            // The clock is an hour behind the server's, and then an hour ahead.
            (Some(3600), 7200, 2880),
            (Some(3600), 0, 2880),
            (Some(3600), -600, 2880),
            (Some(3600), 1200, 960),
            (Some(-1), 600, 480),
        ] {
            let renewal = Renewal::new(asked, now + SignedDuration::from_secs(shown), named);
            assert_eq!(renewal.after.as_secs(), wait, "{named:?} {shown}");
        }
    }

    #[test]
    fn a_clock_that_is_set_keeps_no_token_longer() {
        let wall: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let own = Instant::now();
        let expires_at = wall + SignedDuration::from_secs(1000);
        let renewal = Renewal::new((wall, own), expires_at, Some(1000));
        // Seconds by which the clocks have gone on.
        for (by_wall, by_own, due) in [
            (799, 799, false),
            (800, 800, true),
            // Set back by an hour; set forward; and the machine has slept.
            (799 - 3600, 799, false),
            (800 - 3600, 800, true),
            (3600, 10, true),
            (900, 100, true),
        ] {
            let now = (
                wall + SignedDuration::from_secs(by_wall),
                own + Duration::from_secs(by_own),
            );
            assert_eq!(renewal.is_due(now), due, "{by_wall} {by_own}");
        }
    }
}
