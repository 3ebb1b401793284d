//! Kubeconfig files of the lab's users, with their credentials inside.

use std::fs;
use std::path::Path;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::pki::Identity;

/// How a user proves who it is.
#[derive(Debug)]
pub enum Credential<'a> {
    /// By a client certificate.
    Certificate(&'a Identity),
    /// By a bootstrap token.
    Token(&'a str),
}

/// Writes a kubeconfig for one user of the API server.
///
/// # Errors
/// When the file or the authority's certificate cannot be written or read.
pub fn write(file: &Path, server: &str, ca: &Path, user: &Credential<'_>) -> Result<()> {
    let user = match user {
        Credential::Certificate(identity) => json!({
            "client-certificate-data": STANDARD.encode(&identity.certificate),
            "client-key-data": STANDARD.encode(&identity.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "lab", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(fs::read(ca)?),
        }}],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "user" } }],
        "current-context": "lab",
    });
    // JSON is YAML.
    fs::write(file, serde_json::to_string_pretty(&config)?)?;
    Ok(())
}
