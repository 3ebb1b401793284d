//! Images, volumes, objects and sinks of the imagination.

use std::sync::Arc;

use async_trait::async_trait;
use hanok_runtime::api::{Credentials, Error, Image, ImageService, PodUid, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodStatus, Secret, Service};

use super::{Fake, Pull};
use crate::pod::spec;
use crate::sinks::{
    EventKind, EventSink, MountedVolumes, ObjectError, Objects, StatusSink, Token, TokenRequest,
    VolumeError, Volumes,
};

#[async_trait]
impl ImageService for Fake {
    async fn pull_image(&self, reference: &str, _credentials: &[Credentials]) -> Result<Image> {
        self.call(format!("pull {reference}"));
        let pull = self.state().pull.clone();
        match pull {
            Pull::Works | Pull::UnpackHangs => Ok(image()),
            Pull::Hangs => {
                let ends = self.state().pull_ends.take();
                match ends {
                    Some(ends) => ends.await.expect("the test lives"),
                    None => std::future::pending().await,
                }
                Ok(image())
            }
            Pull::Fails => Err(Error::Pull {
                reference: reference.to_owned(),
                message: "no such host".to_owned(),
            }),
        }
    }

    async fn unpack_image(&self, id: &str) -> Result<()> {
        if self.state().pull == Pull::UnpackHangs {
            self.call(format!("unpack {id}"));
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn image_status(&self, _reference: &str) -> Result<Option<Image>> {
        match self.state().broken_store.clone() {
            None => Ok(None),
            Some(message) => Err(Error::Internal(message)),
        }
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn remove_image(&self, _reference: &str) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn image() -> Image {
    Image {
        id: "sha256:aa".into(),
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        size: 42,
        user: String::new(),
        stop_signal: String::new(),
        pinned: false,
    }
}

impl StatusSink for Fake {
    fn publish(&self, _pod: &Arc<Pod>, status: PodStatus) {
        self.state().statuses.push(status);
    }

    fn terminated(&self, _pod: &Arc<Pod>) {
        self.call("terminated".to_owned());
        self.state().terminated += 1;
    }
}

impl EventSink for Fake {
    fn pod_event(
        &self,
        _pod: &Pod,
        _container: Option<&str>,
        _kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        self.state().events.push(format!("{reason} {message}"));
    }
}

#[async_trait]
impl Objects for Fake {
    async fn config_map(
        &self,
        _namespace: &str,
        name: &str,
    ) -> std::result::Result<Arc<ConfigMap>, ObjectError> {
        Err(ObjectError::NotFound {
            kind: "configmap",
            name: name.to_owned(),
        })
    }

    async fn secret(
        &self,
        _namespace: &str,
        name: &str,
    ) -> std::result::Result<Arc<Secret>, ObjectError> {
        Err(ObjectError::NotFound {
            kind: "secret",
            name: name.to_owned(),
        })
    }

    async fn token(&self, _request: &TokenRequest) -> std::result::Result<Token, ObjectError> {
        Err(ObjectError::Other("no tokens here".to_owned()))
    }

    async fn services(
        &self,
        _namespace: &str,
    ) -> std::result::Result<Vec<Arc<Service>>, ObjectError> {
        Ok(Vec::new())
    }

    fn register(&self, _pod: &Arc<Pod>) {}

    fn unregister(&self, _uid: &PodUid) {}
}

#[async_trait]
impl Volumes for Fake {
    async fn mount(&self, pod: &Arc<Pod>) -> std::result::Result<MountedVolumes, Vec<VolumeError>> {
        let mut state = self.state();
        state.volumes.insert(spec::uid(pod));
        match state.broken_volume.clone() {
            None => Ok(MountedVolumes::new()),
            Some(message) => Err(vec![VolumeError {
                volume: "v".to_owned(),
                message,
            }]),
        }
    }

    async fn unmount(&self, uid: &PodUid) -> std::result::Result<(), Vec<VolumeError>> {
        self.call("unmount".to_owned());
        self.state().volumes.remove(uid);
        Ok(())
    }

    async fn on_disk(&self) -> Vec<PodUid> {
        self.state().volumes.iter().cloned().collect()
    }
}
