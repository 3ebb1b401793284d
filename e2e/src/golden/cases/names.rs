//! Names: of hosts, of name servers, of users.

use serde_json::json;

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::pod;

pub(super) fn cases() -> Vec<Case> {
    let servers = json!({"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]});
    vec![
        case(
            &pod("name-of-many-letters-that-no-host-has")
                .set("subdomain", "in-a-domain-of-many-letters")
                .set("setHostnameAsFQDN", true)
                .with(sleeper("c")),
            &["event Warning FailedCreatePodSandBox"],
        ),
        case(
            &pod("too-many-name-servers")
                .set("dnsConfig", servers)
                .with(sleeper("c")),
            &["phase Running", "event Warning DNSConfigForming"],
        ),
        case(
            &pod("name-of-a-user-who-may-be-root").with(
                sleeper("c")
                    .image("named:1")
                    .set("securityContext", json!({"runAsNonRoot": true})),
            ),
            &["container c waiting CreateContainerConfigError"],
        ),
    ]
}
