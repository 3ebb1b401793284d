//! Pods from creation to readiness and from deletion to absence, one after the other and many at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use super::report::Report;
use super::subject::Subject;
use super::watch::PodWatch;
use crate::manifest::{pod, testapp};

/// Where the pods are.
pub(super) const NAMESPACE: &str = "bench";

/// A pause between pods, so that the end of one does not fall into the beginning of the next.
const REST: Duration = Duration::from_millis(100);

/// Makes and deletes pods and takes the times.
#[derive(Debug)]
pub(super) struct Bench {
    pods: Api<Pod>,
    watch: PodWatch,
    registry: String,
    made: usize,
}

impl Bench {
    /// Makes the namespace and begins to watch it.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(super) async fn new(client: &Client, registry: &str) -> Result<Self> {
        super::namespace(client, NAMESPACE).await?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), NAMESPACE),
            watch: PodWatch::start(client, NAMESPACE).await?,
            registry: registry.to_owned(),
            made: 0,
        })
    }

    /// Has the node pull the image and make what it makes once.
    ///
    /// # Errors
    /// When the pod does not become ready.
    pub(super) async fn warm_up(&mut self, subject: &Subject) -> Result<()> {
        for inits in [0, 2] {
            let pod = self.pod(subject, inits)?;
            self.create(&pod).await?;
            self.delete(&pod).await?;
        }
        Ok(())
    }

    /// Measures pods one after the other, the subjects in turn.
    ///
    /// # Errors
    /// When a pod does not become ready or does not go.
    pub(super) async fn one_after_the_other(
        &mut self,
        subjects: &[Subject],
        report: &mut Report,
        count: usize,
        inits: usize,
    ) -> Result<()> {
        let mut times = vec![(Vec::new(), Vec::new()); subjects.len()];
        for _ in 0..count {
            for (subject, (created, deleted)) in subjects.iter().zip(&mut times) {
                let pod = self.pod(subject, inits)?;
                created.push(self.create(&pod).await?);
                tokio::time::sleep(REST).await;
                deleted.push(self.delete(&pod).await?);
                tokio::time::sleep(REST).await;
            }
        }
        let suffix = if inits == 0 { "" } else { "_two_inits" };
        for (subject, (created, deleted)) in subjects.iter().zip(times) {
            report.add_times(subject.name(), &format!("create_to_ready{suffix}"), created);
            if inits == 0 {
                report.add_times(subject.name(), "delete_to_gone", deleted);
            }
        }
        Ok(())
    }

    /// Creates many pods at once, waits for the last to be ready, and returns their names.
    ///
    /// # Errors
    /// When one does not become ready.
    pub(super) async fn create_burst(
        &mut self,
        subject: &Subject,
        report: &mut Report,
        count: usize,
    ) -> Result<Vec<String>> {
        let pods = (0..count)
            .map(|_| self.pod(subject, 0))
            .collect::<Result<Vec<_>>>()?;
        self.create_pods(subject, report, &pods).await
    }

    /// Creates these pods at once, waits for the last to be ready, and returns their names.
    ///
    /// # Errors
    /// When one does not become ready.
    pub(super) async fn create_pods(
        &mut self,
        subject: &Subject,
        report: &mut Report,
        pods: &[Pod],
    ) -> Result<Vec<String>> {
        let names: Vec<String> = pods
            .iter()
            .filter_map(|p| p.metadata.name.clone())
            .collect();
        let began = Instant::now();
        try_join_all(
            pods.iter()
                .map(|pod| async { self.pods.create(&PostParams::default(), pod).await }),
        )
        .await?;
        let mut last = began;
        for name in &names {
            last = last.max(self.watch.ready(name).await?);
        }
        let seconds = (last - began).as_secs_f64();
        report.add(subject.name(), "burst_last_ready", seconds * 1e3, "ms");
        #[expect(clippy::cast_precision_loss, reason = "a few dozen pods")]
        report.add(
            subject.name(),
            "burst_pods_per_second",
            pods.len() as f64 / seconds,
            "pods/s",
        );
        Ok(names)
    }

    /// Deletes many pods at once and waits for the last to be gone.
    ///
    /// # Errors
    /// When one does not go.
    pub(super) async fn delete_burst(
        &mut self,
        subject: &Subject,
        report: &mut Report,
        names: Vec<String>,
    ) -> Result<()> {
        let began = Instant::now();
        try_join_all(
            names
                .iter()
                .map(|name| async { self.pods.delete(name, &DeleteParams::default()).await }),
        )
        .await?;
        let mut last = began;
        for name in &names {
            last = last.max(self.watch.gone(name).await?);
        }
        report.add(
            subject.name(),
            "burst_last_gone",
            millis(last - began),
            "ms",
        );
        Ok(())
    }

    /// Milliseconds until the pod is ready.
    async fn create(&mut self, pod: &Pod) -> Result<f64> {
        let began = Instant::now();
        self.pods.create(&PostParams::default(), pod).await?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let ready = self.watch.ready(name).await?;
        Ok(millis(ready - began))
    }

    /// Milliseconds until the pod is gone.
    async fn delete(&mut self, pod: &Pod) -> Result<f64> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let began = Instant::now();
        self.pods.delete(name, &DeleteParams::default()).await?;
        let gone = self.watch.gone(name).await?;
        Ok(millis(gone - began))
    }

    fn pod(&mut self, subject: &Subject, inits: usize) -> Result<Pod> {
        self.made += 1;
        let mut manifest = pod(&format!("{}-{}", subject.name(), self.made))
            .bound_to(subject.node())
            .set("terminationGracePeriodSeconds", 30)
            .set("tolerations", json!([{ "operator": "Exists" }]))
            .with(testapp("main", "serve 8080"));
        for n in 0..inits {
            manifest = manifest.init(testapp(&format!("init-{n}"), "print done"));
        }
        let text = manifest
            .manifest()
            .to_string()
            .replace("REGISTRY", &self.registry);
        serde_json::from_str(&text).context("the bench's own manifest")
    }
}

/// A duration in milliseconds.
pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
