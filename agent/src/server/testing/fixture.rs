//! A server on a free port of the loopback, with a CA of its own and everything behind it faked.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::{ContainerState, Credentials, Error, Image, ImageService};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_util::sync::CancellationToken;

use super::super::logs::watch::Hub;
use super::super::{
    Access, Deps, Identity, ReviewError, Reviewer, Server, ServerConfig, ServerError, TlsConfig,
};
use super::runtime::{FakeRuntime, UID};
use crate::sinks::{PodDirectory, PodEntry};
use crate::stats::{Places, Stats};

/// The state of the container "app", which a test may choose.
pub(super) const RUNNING: &str = r#"{"running": {}}"#;

/// A certificate of a client.
pub(super) type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A certificate authority.
pub(super) struct Ca(Issuer<'static, KeyPair>, pub(super) String);

impl Ca {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "test-ca");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self(Issuer::new(params, key), pem)
    }

    /// A client's certificate.
    pub(super) fn issue(&self, user: &str, group: &str, expired: bool) -> ClientCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        (vec![certificate.der().clone()], key)
    }
}

/// Knows tokens and grants; user "admin" may do everything.
#[derive(Debug, Default)]
pub(super) struct FakeReviewer {
    pub(super) tokens: HashMap<&'static str, &'static str>,
    pub(super) grants: HashSet<(&'static str, &'static str, &'static str)>,
    pub(super) questions: AtomicUsize,
    pub(super) out_of_order: Mutex<bool>,
}

#[async_trait]
impl Reviewer for FakeReviewer {
    async fn review_token(&self, token: &str) -> Result<Option<Identity>, ReviewError> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        let user = self.tokens.get(token);
        Ok(user.map(|user| Identity {
            user: (*user).to_owned(),
            ..Identity::default()
        }))
    }
    async fn review_access(&self, who: &Identity, what: &Access) -> Result<bool, ReviewError> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        if *self.out_of_order.lock().unwrap() {
            let message = "connection refused".to_owned();
            return Err(ReviewError {
                review: "SubjectAccessReview",
                message,
            });
        }
        assert_eq!(what.node, "node-1");
        let granted = |(user, verb, subresource): &(&str, &str, &str)| {
            who.user == *user && what.verb == *verb && what.subresource == *subresource
        };
        Ok(who.user == "admin" || self.grants.iter().any(granted))
    }
}

/// One pod "web" in "default" with a container "app".
#[derive(Debug)]
struct FakePods(Mutex<PodStatus>);

impl FakePods {
    fn entry(&self) -> PodEntry {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "default", "uid": UID},
            "spec": {"containers": [{"name": "app"}]},
        }))
        .unwrap();
        PodEntry {
            pod: Arc::new(pod),
            status: self.0.lock().unwrap().clone(),
        }
    }
}

impl PodDirectory for FakePods {
    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<PodEntry> {
        (namespace == "default" && name == "web").then(|| self.entry())
    }
    fn pods(&self) -> Vec<PodEntry> {
        vec![self.entry()]
    }
    fn active(&self) -> Vec<Arc<Pod>> {
        vec![self.entry().pod]
    }
}

/// A running server.
pub(super) struct Fixture {
    pub(super) address: SocketAddr,
    pub(super) healthz: SocketAddr,
    pub(super) ca: Ca,
    pub(super) runtime: Arc<FakeRuntime>,
    pub(super) reviewer: Arc<FakeReviewer>,
    pub(super) hub: Arc<Hub>,
    pub(super) logs: PathBuf,
    pub(super) dir: tempfile::TempDir,
    pub(super) shutdown: CancellationToken,
    pub(super) running: tokio::task::JoinHandle<Result<(), ServerError>>,
    streams: tokio_util::task::TaskTracker,
    pods: Arc<FakePods>,
}

impl Fixture {
    pub(super) fn start() -> Self {
        Self::with(FakeReviewer::default(), |_| {})
    }

    pub(super) fn with(reviewer: FakeReviewer, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let ca_file = dir.path().join("ca.crt");
        std::fs::write(&ca_file, &ca.1).unwrap();
        let tls = TlsConfig {
            cert_dir: dir.path().join("pki"),
            client_ca_file: Some(ca_file),
            names: vec!["localhost".to_owned()],
            ..TlsConfig::default()
        };
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = ServerConfig::new(any_port, "node-1", tls);
        config.healthz_address = Some(any_port);
        change(&mut config);
        let logs = dir.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        let runtime = FakeRuntime::new();
        runtime.add("now", "app", ContainerState::Running, &logs.join("0.log"));
        let reviewer = Arc::new(reviewer);
        let pods = Arc::new(FakePods(Mutex::new(status(RUNNING, "{}"))));
        let deps = deps(runtime.clone(), pods.clone(), reviewer.clone());
        let server = Server::bind(config, deps).unwrap();
        let shutdown = CancellationToken::new();
        Self {
            address: server.local_addr().unwrap(),
            healthz: server.healthz_addr().unwrap(),
            ca,
            runtime,
            reviewer,
            hub: server.app.hub.clone(),
            logs,
            streams: server.streams(),
            running: tokio::spawn(server.run(shutdown.clone())),
            shutdown,
            pods,
            dir,
        }
    }

    /// What the server works with.
    pub(super) fn deps(&self) -> Deps {
        deps(
            self.runtime.clone(),
            self.pods.clone(),
            self.reviewer.clone(),
        )
    }

    /// Sets what the status says of the container "app": its state and last state as JSON.
    pub(super) fn set_status(&self, state: &str, last: &str) {
        *self.pods.0.lock().unwrap() = status(state, last);
    }

    /// Nothing of any stream is left.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty()
            && self.runtime.live() == 0
            && self.runtime.listeners() == 0
            // The directory of the client CA.
            && self.hub.watched() == 1
    }
}

fn deps(runtime: Arc<FakeRuntime>, pods: Arc<FakePods>, reviewer: Arc<FakeReviewer>) -> Deps {
    Deps {
        stats: Arc::new(Stats::new(runtime.clone(), Arc::new(NoImages), places())),
        runtime,
        pods,
        reviewer,
        health: Arc::new(|| Ok(())),
        configz: serde_json::json!({"maxPods": 110}),
        flags: [("config".to_owned(), "/etc/config.yaml".to_owned())].into(),
    }
}

fn places() -> Places {
    Places {
        node_name: "node-1".to_owned(),
        pods_dir: "/nowhere/pods".into(),
        state_dir: "/nowhere".into(),
    }
}

/// A store without images.
struct NoImages;

#[async_trait]
impl ImageService for NoImages {
    async fn pull_image(&self, _: &str, _: &[Credentials]) -> Result<Image, Error> {
        Err(Error::Internal("not part of this fake".to_owned()))
    }
    async fn image_status(&self, _: &str) -> Result<Option<Image>, Error> {
        Ok(None)
    }
    async fn list_images(&self) -> Result<Vec<Image>, Error> {
        Ok(Vec::new())
    }
    async fn remove_image(&self, _: &str) -> Result<(), Error> {
        Ok(())
    }
}

fn status(state: &str, last: &str) -> PodStatus {
    let text = format!(
        r#"{{"containerStatuses": [{{"name": "app", "containerID": "hanok://now",
            "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {state}, "lastState": {last}}}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// Waits until something is so; ten seconds at most.
pub(super) async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within ten seconds: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
