//! A CertificateSigningRequest from its creation to its certificate.

use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::watcher::watch_object;
use rcgen::{KeyPair, PublicKeyData};
use sha2::{Digest, Sha256};

use super::{CertificateError, Order, store};
use crate::back_off::BackOff;
use crate::client::{Failure, failure, message};

/// A request is decided within this time, or asked for anew: the API server forgets one after a day or so.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// A request that is not decided by itself in this time needs a person, who is to be told.
const TOLD: Duration = Duration::from_secs(5);
/// First and longest wait before a request that failed is sent again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Asks for a certificate, waits until it is signed and puts it into use.
pub async fn obtain(client: &kube::Client, order: &Order) -> Result<(), CertificateError> {
    let key = order.store.pending_key()?;
    let name = name(order, &key);
    let api = Api::all(client.clone());
    let obtained = async {
        create(&api, &name, order, &key).await?;
        decided(&api, &name).await
    };
    let certificate = match obtained.await {
        Ok(certificate) => certificate,
        Err(error) => {
            // One that was refused stays refused: the next request is for another key.
            if matches!(error, CertificateError::Denied { .. }) {
                order.store.drop_pending_key();
            }
            return Err(error);
        }
    };
    fits(&name, &certificate, &key)?;
    order.store.save(&certificate, &key, Timestamp::now())
}

/// The same for the same key, so that a request outlives an agent.
fn name(order: &Order, key: &KeyPair) -> String {
    let mut hasher = Sha256::new();
    hasher.update(key.der_bytes());
    hasher.update(order.kind.signer());
    hasher.update(&order.node_name);
    for address in &order.addresses {
        hasher.update(address.to_string());
    }
    let digest = hasher.finalize();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("node-csr-{}", &hex[..32])
}

/// Creates it, unless it is there from before. Tries for as long as trying may help.
async fn create(
    api: &Api<CertificateSigningRequest>,
    name: &str,
    order: &Order,
    key: &KeyPair,
) -> Result<(), CertificateError> {
    let request = CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(order.request(key)?.into_bytes()),
            signer_name: order.kind.signer().to_owned(),
            usages: Some(order.kind.usages().map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let error = match api.create(&PostParams::default(), &request).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let refused =
            matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403));
        match failure(&error) {
            Failure::Conflict => return Ok(()),
            Failure::Later if !refused => {}
            _ => {
                return Err(CertificateError::Refused {
                    name: name.to_owned(),
                    message: message(&error),
                });
            }
        }
        if back_off.failures() == 0 {
            tracing::warn!(
                error = message(&error),
                "cannot ask for a certificate, trying on"
            );
        }
        back_off.wait().await;
    }
}

/// Waits until it is signed, or refused.
async fn decided(
    api: &Api<CertificateSigningRequest>,
    name: &str,
) -> Result<String, CertificateError> {
    let undecided = || CertificateError::Undecided {
        name: name.to_owned(),
    };
    let mut waiting = std::pin::pin!(tokio::time::timeout(PATIENCE, verdict(api, name)));
    if let Ok(done) = tokio::time::timeout(TOLD, &mut waiting).await {
        return done.unwrap_or_else(|_| Err(undecided()));
    }
    tracing::info!("waiting: {}", undecided());
    waiting.await.unwrap_or_else(|_| Err(undecided()))
}

async fn verdict(
    api: &Api<CertificateSigningRequest>,
    name: &str,
) -> Result<String, CertificateError> {
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let mut seen = std::pin::pin!(watch_object(api.clone(), name));
        let error = loop {
            match seen.try_next().await {
                Ok(Some(found)) => {
                    back_off.reset();
                    if let Some(done) = judge(name, found.as_ref()) {
                        return done;
                    }
                }
                Ok(None) => break "the watch has ended".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        tracing::debug!(error, "lost sight of the certificate signing request");
        back_off.wait().await;
    }
}

/// What has become of it; none while nothing has.
fn judge(
    name: &str,
    request: Option<&CertificateSigningRequest>,
) -> Option<Result<String, CertificateError>> {
    let denied = |condition: &str, message: &str| {
        Some(Err(CertificateError::Denied {
            name: name.to_owned(),
            condition: condition.to_owned(),
            message: message.to_owned(),
        }))
    };
    let Some(request) = request else {
        return denied("gone", "somebody has deleted it");
    };
    let status = request.status.as_ref()?;
    let refused = status
        .conditions
        .iter()
        .flatten()
        .find(|one| matches!(one.type_.as_str(), "Denied" | "Failed"));
    if let Some(one) = refused {
        return denied(&one.type_, one.message.as_deref().unwrap_or_default());
    }
    let certificate = status.certificate.as_ref()?;
    (!certificate.0.is_empty()).then(|| Ok(String::from_utf8_lossy(&certificate.0).into_owned()))
}

/// A signer that signed another key would lock the node out.
fn fits(name: &str, certificate: &str, key: &KeyPair) -> Result<(), CertificateError> {
    let wrong = |message: &str| CertificateError::Malformed {
        place: format!("certificate signing request {name}"),
        message: message.to_owned(),
    };
    if store::facts(certificate.as_bytes()).is_none() {
        return Err(wrong("the signer sent no certificate"));
    }
    let block = x509_parser::pem::parse_x509_pem(certificate.as_bytes());
    let (_, block) = block.map_err(|_| wrong("the signer sent no certificate"))?;
    let parsed = block
        .parse_x509()
        .map_err(|_| wrong("the signer sent no certificate"))?;
    if parsed.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
        return Err(wrong("the signer signed another key"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::super::Kind;
    use super::super::store::Store;
    use super::super::store::tests::certificate;
    use super::*;
    use crate::client::fake::{Answer, Fake};

    fn order(dir: &std::path::Path, kind: Kind) -> Order {
        Order {
            kind,
            node_name: "n1".to_owned(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            store: Store::new(dir, kind),
        }
    }

    fn encoded(text: &str) -> Value {
        use base64::Engine;
        json!(base64::engine::general_purpose::STANDARD.encode(text))
    }

    /// An API server on which every request has this status.
    async fn api(status: Value) -> (Arc<Fake>, kube::Client) {
        let (fake, server) = Fake::start(move |seen| {
            let name = seen.path.rsplit('/').next().unwrap_or_default().to_owned();
            let object = |name: &str| {
                json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                    "metadata": {"name": name, "resourceVersion": "1"},
                    "spec": {"request": "", "signerName": "s"}, "status": status})
            };
            match seen.method.as_str() {
                "POST" => Some(Answer::Object(object("made"))),
                _ if seen.query.contains("watch=") => Some(Answer::Open(vec![])),
                _ if name == "certificatesigningrequests" => Some(Answer::Object(json!({
                    "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequestList",
                    "metadata": {"resourceVersion": "1"}, "items": [object("made")]
                }))),
                _ => Some(Answer::Object(object(&name))),
            }
        })
        .await;
        (fake, server.requests)
    }

    #[tokio::test]
    async fn a_signed_request_becomes_the_current_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let order = order(dir.path(), Kind::Serving);
        let key = order.store.pending_key().unwrap();
        let signed = certificate(&key, "n1", (2026, 2030));
        let (fake, client) = api(json!({"certificate": encoded(&signed)})).await;
        obtain(&client, &order).await.unwrap();
        assert_eq!(order.store.facts().unwrap().common_name, "system:node:n1");
        let sent = &fake.seen()[0].body;
        assert_eq!(sent["spec"]["signerName"], "kubernetes.io/kubelet-serving");
        assert_eq!(
            sent["spec"]["usages"],
            json!(["digital signature", "server auth"])
        );
        assert!(!dir.path().join("kubelet-server.key.tmp").exists());
    }

    #[tokio::test]
    async fn a_denied_request_says_why_and_is_not_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let order = order(dir.path(), Kind::Client);
        let (_fake, client) = api(json!({"conditions": [
            {"type": "Denied", "status": "True", "message": "not you"}]}))
        .await;
        let error = obtain(&client, &order).await.unwrap_err().to_string();
        assert!(error.ends_with("is Denied: not you"), "{error}");
        assert!(!dir.path().join("kubelet-client.key.tmp").exists());
    }

    #[tokio::test]
    async fn a_certificate_of_another_key_is_not_put_into_use() {
        let dir = tempfile::tempdir().unwrap();
        let order = order(dir.path(), Kind::Client);
        let other = certificate(&KeyPair::generate().unwrap(), "n1", (2026, 2030));
        for (certificate, words) in [(other.as_str(), "another key"), ("hello", "no certificate")] {
            let (_fake, client) = api(json!({"certificate": encoded(certificate)})).await;
            let error = obtain(&client, &order).await.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(order.store.facts(), None);
        }
    }

    #[tokio::test]
    async fn a_token_that_is_not_taken_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let order = order(dir.path(), Kind::Client);
        let seen = Arc::new(Mutex::new(0));
        let counted = seen.clone();
        let (_fake, server) = Fake::start(move |_| {
            *counted.lock().unwrap() += 1;
            Some(Answer::Status(401, "Unauthorized"))
        })
        .await;
        let error = obtain(&server.requests, &order).await.unwrap_err();
        assert!(error.to_string().ends_with("Unauthorized"), "{error}");
        assert_eq!(*seen.lock().unwrap(), 1);
    }
}
