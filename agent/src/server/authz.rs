//! What a caller may do: which node subresource a request needs, and whether the API server grants it.
//!
//! The table is the kubelet's (fine-grained subresources first, `proxy` as the fallback) with one stricter rule:
//! whatever runs something in a container or reaches into a pod needs `create`, also when it comes as a GET that
//! is upgraded. Otherwise `get nodes/proxy`, which monitoring is often given, would be root on the node.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;

use super::cache::Cache;
use super::review::{Access, Identity, ReviewError, Reviewer};

/// Who decides what a caller may do (KubeletConfiguration `authorization`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizationConfig {
    /// Every authenticated caller may do everything.
    AlwaysAllow,
    /// The API server decides, by SubjectAccessReview.
    Webhook {
        /// How long a yes is kept.
        authorized_ttl: Duration,
        /// How long a no is kept.
        unauthorized_ttl: Duration,
    },
}

impl Default for AuthorizationConfig {
    fn default() -> Self {
        Self::Webhook {
            authorized_ttl: Duration::from_secs(300),
            unauthorized_ttl: Duration::from_secs(30),
        }
    }
}

/// What a request needs: each of `all`, where any verb and subresource of the inner list will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needs {
    /// API verb of the HTTP method.
    pub(super) verb: &'static str,
    /// Subresources, any of which will do.
    pub(super) any: Vec<&'static str>,
    /// Whether `create` on `proxy` is needed as well.
    pub(super) create: bool,
}

/// Reads a request's needs off its method and path. Pure.
pub(super) fn needs(method: &Method, path: &str) -> Needs {
    let verb = match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    let below = |prefix| is_below(path, prefix);
    let any = if below("/pods") || below("/runningpods") {
        vec!["pods", "proxy"]
    } else if below("/healthz") {
        vec!["healthz", "proxy"]
    } else if below("/configz") {
        vec!["configz", "proxy"]
    } else if below("/stats") {
        vec!["stats"]
    } else if below("/metrics") {
        vec!["metrics"]
    } else if below("/logs") {
        vec!["log"]
    } else if below("/checkpoint") {
        vec!["checkpoint"]
    } else if below("/statusz") {
        vec!["statusz"]
    } else if below("/flagz") {
        // As a kubelet has it: the flags are a part of the configuration.
        vec!["configz"]
    } else {
        vec!["proxy"]
    };
    let create = verb != "create" && STREAMS.into_iter().any(below);
    Needs { verb, any, create }
}

/// Whether a path is one of those that enableDebuggingHandlers turns off.
pub(super) fn is_debugging(path: &str) -> bool {
    let others = ["/containerLogs", "/runningpods"];
    STREAMS
        .into_iter()
        .chain(others)
        .any(|prefix| is_below(path, prefix))
}

/// Paths that reach into pods.
const STREAMS: [&str; 4] = ["/exec", "/attach", "/portForward", "/run"];

fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Decision {
    /// Go on.
    Allowed,
    /// 403 with this text.
    Forbidden(String),
    /// 500 with this text: nobody could be asked, so nobody gets in.
    Failed(String),
}

/// Decides.
pub(super) struct Authorizer {
    config: AuthorizationConfig,
    node: String,
    reviewer: Arc<dyn Reviewer>,
    decisions: Cache<(Identity, Access), bool>,
}

impl Authorizer {
    pub(super) fn new(
        config: AuthorizationConfig,
        node: String,
        reviewer: Arc<dyn Reviewer>,
    ) -> Self {
        Self {
            config,
            node,
            reviewer,
            decisions: Cache::new(),
        }
    }

    /// Whether `who` may make this request.
    pub(super) async fn decide(&self, who: &Identity, method: &Method, path: &str) -> Decision {
        if self.config == AuthorizationConfig::AlwaysAllow {
            return Decision::Allowed;
        }
        let needs = needs(method, path);
        let granted = async {
            Ok::<bool, ReviewError>(
                self.any(who, needs.verb, &needs.any).await?
                    && (!needs.create || self.any(who, "create", &["proxy"]).await?),
            )
        };
        let request = format!(
            "(user={}, verb={}, resource=nodes, subresource(s)=[{}])",
            who.user,
            if needs.create { "create" } else { needs.verb },
            needs.any.join(" "),
        );
        match granted.await {
            Ok(true) => Decision::Allowed,
            Ok(false) => Decision::Forbidden(format!("Forbidden {request}")),
            Err(error) => {
                tracing::warn!(%error, %request, "cannot authorize a request");
                Decision::Failed(format!("Authorization error {request}"))
            }
        }
    }

    async fn any(
        &self,
        who: &Identity,
        verb: &'static str,
        subresources: &[&'static str],
    ) -> Result<bool, ReviewError> {
        for &subresource in subresources {
            if self
                .one(
                    who,
                    Access {
                        verb,
                        subresource,
                        node: self.node.clone(),
                    },
                )
                .await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn one(&self, who: &Identity, what: Access) -> Result<bool, ReviewError> {
        let key = (who.clone(), what);
        if let Some(known) = self.decisions.get(&key) {
            return Ok(known);
        }
        let allowed = self.reviewer.review_access(&key.0, &key.1).await?;
        let ttl = match self.config {
            AuthorizationConfig::AlwaysAllow => Duration::ZERO,
            AuthorizationConfig::Webhook { authorized_ttl, .. } if allowed => authorized_ttl,
            AuthorizationConfig::Webhook {
                unauthorized_ttl, ..
            } => unauthorized_ttl,
        };
        self.decisions.put(key, allowed, ttl);
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_needs_its_subresource() {
        let table: &[(&str, &[&str])] = &[
            ("/pods", &["pods", "proxy"]),
            ("/pods/", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/podsx", &["proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/", &["log"]),
            ("/checkpoint/a/b/c", &["checkpoint"]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/containerLogs/a/b/c", &["proxy"]),
            ("/exec/a/b/c", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ];
        for (path, any) in table {
            assert_eq!(needs(&Method::GET, path).any, any.to_vec(), "{path}");
        }
    }

    #[test]
    fn streams_need_create_whatever_the_method() {
        for path in [
            "/exec/a/b/c",
            "/attach/a/b/c",
            "/portForward/a/b",
            "/run/a/b/c",
        ] {
            assert!(needs(&Method::GET, path).create, "{path}");
            assert!(needs(&Method::PUT, path).create, "{path}");
            let post = needs(&Method::POST, path);
            assert_eq!((post.verb, post.create), ("create", false), "{path}");
        }
        assert!(!needs(&Method::GET, "/containerLogs/a/b/c").create);
    }
}
