//! Deadlines and proofs, against servers in this process that misbehave on the wire.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Answers every request with these bytes and keeps the connection open.
async fn server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
                    let _ = stream.write_all(answer).await;
                }
            });
        }
    });
    format!("{address}/app:1")
}

async fn resolve(name: &str) -> Result<Resolved, RegistryError> {
    let client = Client::new(RegistryConfig {
        certs_dir: None,
        response_timeout: Duration::from_millis(200),
        stall_timeout: Duration::from_millis(200),
        attempts: 2,
        retry_pause: Duration::from_millis(5),
        ..RegistryConfig::default()
    });
    let reference = name.parse().unwrap();
    let resolved = client
        .resolve(&reference, &[], Ask::Document, |_| false)
        .await;
    resolved.map(|(_, resolved)| resolved)
}

#[tokio::test]
async fn a_silent_server_is_given_up_at_the_deadline() {
    let error = resolve(&server(b"").await).await.unwrap_err();
    assert!(
        crate::image::text_of(&error).contains("no answer in time"),
        "{error:?}"
    );
    let stalled = server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
    let error = resolve(&stalled).await.unwrap_err();
    assert!(matches!(error, RegistryError::Body(_)), "{error:?}");
}

#[tokio::test]
async fn a_document_that_is_not_the_announced_one_is_refused() {
    let name = server(
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ndocker-content-digest: sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n\r\n{}",
    )
    .await;
    assert!(matches!(
        resolve(&name).await,
        Err(RegistryError::Digest { .. })
    ));
}

#[tokio::test]
async fn garbage_and_redirects_without_end_are_errors() {
    assert!(matches!(
        resolve(&server(b"garbage\r\n\r\n").await).await,
        Err(RegistryError::Request { .. })
    ));
    let circle =
        server(b"HTTP/1.1 302 Found\r\nlocation: again\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(
        resolve(&circle).await,
        Err(RegistryError::Redirect { .. })
    ));
    let challenge = server(
        b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"http://elsewhere/token\"\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    assert!(matches!(
        resolve(&challenge).await,
        Err(RegistryError::Realm { .. })
    ));
    let basic = server(
        b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=x\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    assert!(matches!(
        resolve(&basic).await,
        Err(RegistryError::Denied { status: 401, .. })
    ));
}
