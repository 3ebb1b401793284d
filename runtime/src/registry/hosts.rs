//! Where a registry's content is fetched from: mirrors and settings, in the files that containerd has.
//!
//! `CERTS_DIR/HOST/hosts.toml` (or `HOST_PORT_`, or `_default`): `server`, and `[host."URL"]` tables with
//! `capabilities`, `skip_verify`, `ca`, `override_path`. Without a file a registry is asked over https, one
//! on a loopback address over http. There is no silent change from https to http.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use serde::Deserialize;

use super::RegistryError;

/// Settings of the registry client.
#[derive(Debug, Clone)]
pub struct RegistryConfig {
    /// Directory of `HOST/hosts.toml`; none is read without it.
    pub certs_dir: Option<PathBuf>,
    /// Registries (host, or host:port) that are asked over plain http.
    pub plain_http: Vec<String>,
    /// For a connection, its TLS handshake and the response's headers together.
    pub response_timeout: Duration,
    /// A body that brings nothing for so long is given up.
    pub stall_timeout: Duration,
    /// Attempts at one blob without a byte of progress, and at one request.
    pub attempts: u32,
    /// Pause before the second attempt; it doubles with each further one.
    pub retry_pause: Duration,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            certs_dir: Some(PathBuf::from("/etc/containerd/certs.d")),
            plain_http: Vec::new(),
            response_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            attempts: 4,
            retry_pause: Duration::from_millis(200),
        }
    }
}

/// How a host's certificate is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// Do not check it.
    pub skip_verify: bool,
    /// Files of certificates that are trusted beside the system's.
    pub ca: Vec<PathBuf>,
}

/// A host that has a registry's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host:port`, without a slash at the end.
    pub origin: String,
    /// Path of the API: `/v2` unless overridden.
    pub path: String,
    /// How its certificate is checked.
    pub tls: Tls,
    /// A mirror: it gets no credentials, and is told whose content is meant.
    pub mirror: bool,
    /// May say what a tag points to.
    pub resolve: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HostsFile {
    server: Option<String>,
    host: toml::Table,
    #[serde(flatten)]
    own: HostTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HostTable {
    capabilities: Option<Vec<String>>,
    skip_verify: Option<bool>,
    ca: Option<OneOrMany>,
    override_path: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

impl RegistryConfig {
    /// Where to ask for the content of `registry` (as references name it), in order.
    pub fn endpoints(&self, registry: &str) -> Result<Vec<Endpoint>, RegistryError> {
        let host = if registry == "docker.io" {
            "registry-1.docker.io"
        } else {
            registry
        };
        let plain = self.is_plain(registry);
        let server = format!("{}://{host}", if plain { "http" } else { "https" });
        let Some(file) = self.hosts_file(registry) else {
            return Ok(vec![Endpoint::new(
                &server,
                false,
                &HostTable::default(),
                Path::new("/"),
            )?]);
        };
        let text = std::fs::read_to_string(&file).map_err(|source| RegistryError::HostsFile {
            path: file.clone(),
            source: source.into(),
        })?;
        let bad = |e: toml::de::Error| RegistryError::HostsFile {
            path: file.clone(),
            source: e.into(),
        };
        let hosts: HostsFile = toml::from_str(&text).map_err(bad)?;
        let mut endpoints = Vec::new();
        for (url, table) in hosts.host {
            let table: HostTable = table.try_into().map_err(bad)?;
            let may = |what: &str| {
                table
                    .capabilities
                    .as_ref()
                    .is_none_or(|list| list.iter().any(|c| c == what))
            };
            if may("pull") {
                let resolve = may("resolve");
                let mut endpoint = Endpoint::new(&url, true, &table, &file)?;
                endpoint.resolve = resolve;
                endpoints.push(endpoint);
            }
        }
        let server = hosts.server.unwrap_or(server);
        endpoints.push(Endpoint::new(&server, false, &hosts.own, &file)?);
        Ok(endpoints)
    }

    fn is_plain(&self, registry: &str) -> bool {
        let name = host_of(registry);
        self.plain_http
            .iter()
            .any(|plain| plain == registry || plain == name)
            || is_loopback(name)
    }

    fn hosts_file(&self, registry: &str) -> Option<PathBuf> {
        let dir = self.certs_dir.as_ref()?;
        let port = registry
            .rsplit_once(':')
            .map(|(host, port)| format!("{host}_{port}_"));
        let names = port
            .iter()
            .map(String::as_str)
            .chain([registry, "_default"]);
        names
            .map(|name| dir.join(name).join("hosts.toml"))
            .find(|path| path.is_file())
    }
}

impl Endpoint {
    fn new(url: &str, mirror: bool, table: &HostTable, file: &Path) -> Result<Self, RegistryError> {
        let full = if url.contains("://") {
            url.to_owned()
        } else {
            format!("https://{url}")
        };
        let bad = || RegistryError::HostsFile {
            path: file.to_owned(),
            source: format!("{url:?} is not an http or https URL of a host").into(),
        };
        let uri: Uri = full.parse().map_err(|_| bad())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(bad());
        };
        if !matches!(scheme, "http" | "https") || authority.as_str().contains('@') {
            return Err(bad());
        }
        let base = uri.path().trim_end_matches('/');
        let path = match table.override_path || base.ends_with("/v2") {
            true => base.to_owned(),
            false => format!("{base}/v2"),
        };
        let dir = file.parent().unwrap_or(Path::new("/"));
        let ca = match &table.ca {
            None => Vec::new(),
            Some(OneOrMany::One(path)) => vec![dir.join(path)],
            Some(OneOrMany::Many(paths)) => paths.iter().map(|path| dir.join(path)).collect(),
        };
        Ok(Self {
            origin: format!("{scheme}://{authority}"),
            path,
            tls: Tls {
                skip_verify: table.skip_verify.unwrap_or(false),
                ca,
            },
            mirror,
            resolve: true,
        })
    }
}

/// The host without its port.
pub(crate) fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> RegistryConfig {
        RegistryConfig {
            certs_dir: Some(dir.to_owned()),
            ..RegistryConfig::default()
        }
    }

    #[test]
    fn https_is_the_rule_and_loopback_the_exception() {
        let config = RegistryConfig {
            certs_dir: None,
            plain_http: vec!["lab:5000".to_owned()],
            ..RegistryConfig::default()
        };
        for (registry, origin) in [
            ("docker.io", "https://registry-1.docker.io"),
            ("example.com:5000", "https://example.com:5000"),
            ("localhost:5000", "http://localhost:5000"),
            ("127.0.0.2", "http://127.0.0.2"),
            ("[::1]:5000", "http://[::1]:5000"),
            ("lab:5000", "http://lab:5000"),
            ("lab:5001", "https://lab:5001"),
        ] {
            let endpoints = config.endpoints(registry).unwrap();
            assert_eq!(endpoints[0].origin, origin);
            assert_eq!(endpoints[0].path, "/v2");
        }
    }

    #[test]
    fn mirrors_of_hosts_toml_come_first_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("docker.io")).unwrap();
        let text = r#"
            server = "https://hub.example"
            [host."http://z-mirror:5000"]
            capabilities = ["pull", "resolve"]
            [host."https://a-mirror/base/v2"]
            capabilities = ["pull"]
            skip_verify = true
            ca = "ca.pem"
            override_path = true
            [host."https://push-only"]
            capabilities = ["push"]
        "#;
        std::fs::write(dir.path().join("docker.io/hosts.toml"), text).unwrap();
        let endpoints = config(dir.path()).endpoints("docker.io").unwrap();
        let origins: Vec<&str> = endpoints.iter().map(|e| e.origin.as_str()).collect();
        assert_eq!(
            origins,
            [
                "http://z-mirror:5000",
                "https://a-mirror",
                "https://hub.example"
            ]
        );
        assert!(endpoints[0].mirror && endpoints[0].resolve);
        assert!(!endpoints[1].resolve && endpoints[1].tls.skip_verify);
        assert_eq!(endpoints[1].path, "/base/v2");
        assert_eq!(endpoints[1].tls.ca, [dir.path().join("docker.io/ca.pem")]);
        assert!(!endpoints[2].mirror);
    }

    #[test]
    fn a_bad_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("r_5000_")).unwrap();
        let file = dir.path().join("r_5000_/hosts.toml");
        for text in [
            "server = ",
            "server = \"ftp://x\"",
            "[host.\"https://u:p@h\"]",
        ] {
            std::fs::write(&file, text).unwrap();
            let error = config(dir.path()).endpoints("r:5000").unwrap_err();
            assert!(error.to_string().contains("r_5000_/hosts.toml"), "{error}");
        }
    }
}
