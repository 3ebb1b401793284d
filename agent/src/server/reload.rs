//! Takes up new certificates: when a file of the TLS configuration changes, connections from then on use it.
//!
//! Directories are watched and not files, because certificates are replaced by renaming, or by renaming a link that
//! stands before them. What does not load is logged, and the old one stays in use.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use axum_server::tls_rustls::RustlsConfig;
use futures::future::select_all;

use super::logs::watch::{Hub, Watch};
use super::tls::{self, TlsConfig, TlsError};

/// Follows the files for as long as it is polled.
pub(super) async fn follow(hub: Arc<Hub>, config: TlsConfig, live: RustlsConfig) -> Infallible {
    let files = [&config.cert_file, &config.key_file, &config.client_ca_file];
    let directories: BTreeSet<&Path> = files
        .into_iter()
        .flatten()
        .filter_map(|file| file.parent())
        .collect();
    let mut watches: Vec<Watch> = Vec::new();
    for directory in directories {
        // A relative path in the working directory has an empty parent.
        let directory = if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        };
        match hub.watch(directory) {
            Ok(watch) => watches.push(watch),
            Err(error) => tracing::warn!(
                path = %directory.display(), %error,
                "new certificates are taken up at the next start only"
            ),
        }
    }
    if watches.is_empty() {
        return std::future::pending().await;
    }
    // What has changed since the start is seen at once.
    let mut last = String::new();
    loop {
        match load(&config).await {
            Ok(server) => {
                live.reload_from_config(server);
                last.clear();
            }
            Err(error) => {
                // A file is often seen half-written; say each thing once.
                let text = format!("{error}: {:?}", std::error::Error::source(&error));
                if text != last {
                    tracing::warn!(error = text, "cannot load certificates, the old ones stay");
                    last = text;
                }
            }
        }
        let changes = watches.iter_mut().map(|watch| Box::pin(watch.changed()));
        select_all(changes).await;
    }
}

async fn load(config: &TlsConfig) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let config = config.clone();
    let loading = tokio::task::spawn_blocking(move || tls::server_config(&config));
    // The loader does not panic; a runtime that shuts down needs no certificate any more.
    match loading.await {
        Ok(loaded) => loaded,
        Err(_) => std::future::pending().await,
    }
}
