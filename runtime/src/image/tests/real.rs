//! Against Debian's `docker-registry`, the real thing.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::build::{Built, two_layers};
use super::*;
use crate::image::manifest::{OCI_INDEX, OCI_MANIFEST};

/// The registry's process; it ends with this value.
struct Real {
    child: Child,
    address: String,
    _dir: tempfile::TempDir,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Real {
    fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hanok-images-")
            .tempdir()
            .unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let config = dir.path().join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n",
            dir.path().join("data").display()
        );
        std::fs::write(&config, text).unwrap();
        // Where e2e/install.sh unpacks it.
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bin/docker-registry");
        let program = match unpacked.exists() {
            true => unpacked,
            false => "docker-registry".into(),
        };
        let child = Command::new(program)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self {
            child,
            address,
            _dir: dir,
        }
    }

    async fn send(&self, method: &str, url: &str, kind: &str, body: &[u8]) -> hyper::HeaderMap {
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let url = if url.starts_with('/') {
            format!("http://{}{url}", self.address)
        } else {
            url.to_owned()
        };
        let request = hyper::Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", kind)
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let response = client.request(request).await.unwrap();
        assert!(
            response.status().is_success(),
            "{method}: {}",
            response.status()
        );
        response.headers().clone()
    }

    async fn push(&self, built: &Built) {
        for blob in built.blobs() {
            let begun = self
                .send("POST", "/v2/team/app/blobs/uploads/", "", b"")
                .await;
            let location = begun["location"].to_str().unwrap().to_owned();
            let joint = if location.contains('?') { '&' } else { '?' };
            let url = format!("{location}{joint}digest={}", Digest::of(blob));
            self.send("PUT", &url, "application/octet-stream", blob)
                .await;
        }
        let url = format!("/v2/team/app/manifests/{}", built.digest());
        self.send("PUT", &url, OCI_MANIFEST, &built.manifest).await;
    }
}

#[tokio::test]
async fn root_a_real_registry_serves_an_image_and_says_what_it_has_not() {
    let registry = Real::start();
    let built = two_layers();
    registry.push(&built).await;
    let entry = serde_json::json!({
        "mediaType": OCI_MANIFEST, "digest": built.digest().to_string(), "size": built.manifest.len(),
        "platform": {"os": "linux", "architecture": manifest::Platform::host().architecture},
    });
    let index =
        serde_json::json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]});
    let index = index.to_string().into_bytes();
    registry
        .send("PUT", "/v2/team/app/manifests/v1", OCI_INDEX, &index)
        .await;

    let (_dir, images) = store();
    let name = format!("{}/team/app", registry.address);
    let pulled = images.pull_image(&format!("{name}:v1"), &[]).await.unwrap();
    assert_eq!(pulled.id, built.id());
    assert_eq!(
        pulled.repo_digests,
        [format!("{name}@{}", Digest::of(&index))]
    );
    let again = images
        .pull_image(&format!("{name}:WRONG@{}", built.digest()), &[])
        .await
        .unwrap();
    assert_eq!(again.id, built.id());
    let rootfs = images.prepare_rootfs("c1", &pulled.id).await.unwrap();
    assert_eq!(
        std::fs::read(lower(&rootfs)[0].join("etc/new")).unwrap(),
        b"new"
    );
    for missing in ["team/app:nope", "team/nope:v1"] {
        let missing = format!("{}/{missing}", registry.address);
        let error = images
            .pull_image(&missing, &[])
            .await
            .unwrap_err()
            .to_string();
        assert!(error.ends_with(&format!("{missing}: not found")), "{error}");
    }
}
