//! A cluster as a story sees it: kubectl for what is done, the API for what is observed.
//!
//! The cluster is the lab's, or any that a kubeconfig names; stories that need the lab ask for it.

mod kubectl;
mod observed;
mod taint;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::lab::Lab;
use crate::paths;
use crate::process::patience;

pub use observed::{
    condition, container, container_id, describe, ended, ip, is_ready, is_running, name, phase,
    restarts, waiting,
};

pub use taint::Tainted;

/// How often a condition is looked at; a look costs the API server about a millisecond.
const LOOK: Duration = Duration::from_millis(50);

/// A cluster and how to talk to it.
pub struct Cluster {
    kubeconfig: PathBuf,
    registry: String,
    lab: Option<Lab>,
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster of a running lab.
    ///
    /// # Errors
    /// When its kubeconfig cannot be used.
    pub fn of_lab(lab: &Lab) -> Result<Self> {
        Self::new(&lab.kubeconfig("admin"), lab.registry(), Some(lab.clone()))
    }

    /// Any cluster; `registry` holds the images that `hanok-lab images --push` has pushed.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub fn named_by(kubeconfig: &Path, registry: String) -> Result<Self> {
        Self::new(kubeconfig, registry, None)
    }

    fn new(kubeconfig: &Path, registry: String, lab: Option<Lab>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = runtime.block_on(client(kubeconfig))?;
        Ok(Self {
            kubeconfig: kubeconfig.to_path_buf(),
            registry,
            lab,
            runtime,
            client,
        })
    }

    /// The lab.
    ///
    /// # Errors
    /// When the cluster is not a lab's.
    pub fn lab(&self) -> Result<&Lab> {
        self.lab.as_ref().context("this story needs a lab")
    }

    /// The registry with the images, as references name it.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The client, for what kubectl does not tell.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for an answer of the API.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Makes a namespace and waits until pods may be created in it.
    ///
    /// # Errors
    /// When the API server or the controller manager does not do its part.
    pub fn space(&self, name: &str) -> Result<Space<'_>> {
        let space = Space {
            cluster: self,
            namespace: name.to_owned(),
        };
        space.kubectl(&format!("create namespace {name}"))?;
        space.until("the service account", 30, || {
            space.kubectl("get serviceaccount default")?;
            space.kubectl("get configmap kube-root-ca.crt")
        })?;
        Ok(space)
    }

    fn kubectl(&self) -> Result<Command> {
        let mut command = Command::new(paths::go_program("kubectl")?);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .stdin(Stdio::null());
        Ok(command)
    }
}

/// A client for a kubeconfig, with no limit of its own on how much it asks.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let text = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(text, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A namespace of the cluster: where one story plays.
#[derive(Debug)]
pub struct Space<'a> {
    cluster: &'a Cluster,
    namespace: String,
}

impl Space<'_> {
    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    /// The lab.
    ///
    /// # Errors
    /// When the cluster is not a lab's.
    pub fn lab(&self) -> Result<&Lab> {
        self.cluster.lab()
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.namespace
    }

    /// A pod as the API has it.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.cluster.block_on(self.api::<Pod>().get(name))?)
    }

    /// Every pod of the namespace.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn pods(&self) -> Result<Vec<Pod>> {
        Ok(self
            .cluster
            .block_on(self.api::<Pod>().list(&ListParams::default()))?
            .items)
    }

    /// Events on an object, oldest first, as `Reason: message`.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn events(&self, object: &str) -> Result<Vec<String>> {
        let params = ListParams::default().fields(&format!("involvedObject.name={object}"));
        let mut events = self
            .cluster
            .block_on(self.api::<Event>().list(&params))?
            .items;
        events.sort_by_key(|e| e.metadata.creation_timestamp.clone());
        let text = |e: Event| {
            format!(
                "{}: {}",
                e.reason.unwrap_or_default(),
                e.message.unwrap_or_default()
            )
        };
        Ok(events.into_iter().map(text).collect())
    }

    /// Waits for an event on an object whose text holds all of `parts`.
    ///
    /// # Errors
    /// When it does not come within `seconds`.
    pub fn until_event(&self, object: &str, parts: &[&str], seconds: u64) -> Result<String> {
        self.until(&format!("an event {parts:?} on {object}"), seconds, || {
            let events = self.events(object)?;
            let found = events.iter().find(|e| parts.iter().all(|p| e.contains(p)));
            found
                .cloned()
                .with_context(|| format!("there are {events:#?}"))
        })
    }

    /// Waits until `look` gives a value. Here and elsewhere, `seconds` are those of a usual machine: see [`patience`].
    ///
    /// # Errors
    /// When it does not within `seconds`, with what it said last.
    pub fn until<T>(
        &self,
        what: &str,
        seconds: u64,
        mut look: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let patience = patience(Duration::from_secs(seconds));
        let end = Instant::now() + patience;
        loop {
            match look() {
                Ok(value) => return Ok(value),
                Err(e) if Instant::now() >= end => {
                    return Err(e.context(format!("waited {} s for {what}", patience.as_secs())));
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Waits until a pod is as `is` wants it.
    ///
    /// # Errors
    /// When it is not within `seconds`, with its status.
    pub fn until_pod(
        &self,
        name: &str,
        what: &str,
        seconds: u64,
        is: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        self.until(&format!("{name} to be {what}"), seconds, || {
            let pod = self.pod(name)?;
            ensure!(is(&pod), "{}", describe(&pod));
            Ok(pod)
        })
    }

    /// Waits until a pod is ready.
    ///
    /// # Errors
    /// When it is not within 30 s.
    pub fn until_ready(&self, name: &str) -> Result<Pod> {
        self.until_pod(name, "ready", 30, is_ready)
    }

    /// Waits until a pod has this phase.
    ///
    /// # Errors
    /// When it has not within 30 s.
    pub fn until_phase(&self, name: &str, phase: &str) -> Result<Pod> {
        self.until_pod(name, phase, 30, |pod| self::phase(pod) == phase)
    }

    /// Waits until there is no pod of this name.
    ///
    /// # Errors
    /// When there still is within `seconds`, with its status.
    pub fn until_gone(&self, name: &str, seconds: u64) -> Result<()> {
        self.until(&format!("{name} to be gone"), seconds, || {
            let pods = self.pods()?;
            let found = pods.iter().find(|pod| self::name(pod) == name);
            found.map_or(Ok(()), |pod| anyhow::bail!(describe(pod)))
        })
    }

    /// Waits until the namespace has exactly this many pods, all of them ready.
    ///
    /// # Errors
    /// When it has not within `seconds`.
    pub fn until_all_ready(&self, count: usize, seconds: u64) -> Result<Vec<Pod>> {
        self.until(&format!("{count} ready pods"), seconds, || {
            let pods = self.pods()?;
            let waiting: Vec<String> = pods.iter().filter(|p| !is_ready(p)).map(describe).collect();
            ensure!(
                pods.len() == count && waiting.is_empty(),
                "{} pods, not ready: {waiting:#?}",
                pods.len()
            );
            Ok(pods)
        })
    }

    /// Waits until the namespace has no pod.
    ///
    /// # Errors
    /// When it still has within `seconds`.
    pub fn until_no_pods(&self, seconds: u64) -> Result<()> {
        self.until("no pods", seconds, || {
            let pods = self.pods()?;
            ensure!(
                pods.is_empty(),
                "{:#?}",
                pods.iter().map(describe).collect::<Vec<_>>()
            );
            Ok(())
        })
    }

    /// Deletes every workload, with one second to end.
    ///
    /// # Errors
    /// When pods are left after a minute.
    pub fn clear(&self) -> Result<()> {
        self.kubectl("delete deployments,statefulsets,daemonsets,jobs --all --cascade=background")?;
        self.kubectl("delete pods --all --now --wait=false")?;
        self.until_no_pods(60)
    }

    /// Removes the namespace, without waiting for it.
    ///
    /// # Errors
    /// When kubectl fails.
    pub fn remove(&self) -> Result<()> {
        self.kubectl(&format!("delete namespace {} --wait=false", self.namespace))
            .map(drop)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }
}
