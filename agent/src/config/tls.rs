//! tlsMinVersion and tlsCipherSuites: which handshakes the kubelet API takes. Pure.
//!
//! Names are those of a kubelet, which has them from Go. rustls knows fewer versions and suites: what it lacks is
//! weaker than what it has, and is left out.

use rustls::crypto::ring;
use rustls::{CipherSuite, SupportedCipherSuite};

use super::ConfigError;
use super::kubelet::KubeletConfiguration;
use super::resolve::refuse;

const MIN_VERSION: &str = "--tls-min-version (tlsMinVersion)";
const CIPHER_SUITES: &str = "--tls-cipher-suites (tlsCipherSuites)";

/// Suites of TLS 1.3 by their names in Go. Neither Go nor rustls lets anybody choose among them.
const TLS13_SUITES: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

/// Suites that Go has and rustls does not: CBC, RC4, 3DES, and keys that are exchanged by RSA.
const LACKING: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Whether handshakes of TLS 1.2 are taken. Those of 1.3 always are, and older ones never.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tls12 {
    /// With every suite of rustls.
    #[default]
    Any,
    /// With one of these suites.
    With(Vec<CipherSuite>),
    /// No.
    Refused,
}

/// What both fields come to, and what was asked in vain.
pub(super) fn tls12(config: &KubeletConfiguration) -> Result<(Tls12, Option<String>), ConfigError> {
    let is_refused = match config.tls_min_version.as_str() {
        // TLS 1.2 is the oldest that rustls has: who lets older ones in gets what is safe of that.
        "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => false,
        "VersionTLS13" => true,
        other => {
            let message = "write VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13";
            return refuse(MIN_VERSION, &other, message);
        }
    };
    let names = &config.tls_cipher_suites;
    let (mut suites, mut lacking) = (Vec::new(), Vec::new());
    for name in names {
        match usable(name) {
            Some(suite) => suites.push(suite),
            None if TLS13_SUITES.contains(&name.as_str()) => {}
            None if LACKING.contains(&name.as_str()) => lacking.push(name.as_str()),
            None => {
                let message = format!("there is no such suite: write {}", all_usable());
                return refuse(CIPHER_SUITES, name, &message);
            }
        }
    }
    if names.is_empty() {
        let any = if is_refused {
            Tls12::Refused
        } else {
            Tls12::Any
        };
        return Ok((any, None));
    }
    if is_refused {
        let vain = "tlsCipherSuites (TLS 1.3 has suites of its own)";
        return Ok((Tls12::Refused, Some(vain.to_owned())));
    }
    let lacking_names = lacking.join(", ");
    if lacking.len() == names.len() {
        let message = format!("too weak to be had here: write {} too", all_usable());
        return refuse(CIPHER_SUITES, &lacking_names, &message);
    }
    let vain = (!lacking.is_empty()).then(|| format!("tlsCipherSuites ({lacking_names})"));
    // Suites of TLS 1.3 alone leave 1.2 with none.
    match suites.is_empty() {
        true => Ok((Tls12::Refused, vain)),
        false => Ok((Tls12::With(suites), vain)),
    }
}

/// Suites of TLS 1.2 that rustls has.
fn all() -> impl Iterator<Item = CipherSuite> {
    let suites = ring::ALL_CIPHER_SUITES.iter();
    suites
        .filter(|suite| suite.tls13().is_none())
        .map(SupportedCipherSuite::suite)
}

fn usable(name: &str) -> Option<CipherSuite> {
    all().find(|suite| {
        let known = suite.as_str().unwrap_or_default();
        // A kubelet takes the names of two suites without their hash, as they were once called.
        known == name || (name.ends_with("POLY1305") && known == format!("{name}_SHA256"))
    })
}

fn all_usable() -> String {
    let names: Vec<_> = all().filter_map(|suite| suite.as_str()).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GCM: &str = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    const CBC: &str = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA";
    const RC4: &str = "TLS_RSA_WITH_RC4_128_SHA";
    const OF_13: &str = "TLS_AES_128_GCM_SHA256";

    fn found(version: &str, names: &[&str]) -> Result<(Tls12, Option<String>), String> {
        let config = KubeletConfiguration {
            tls_min_version: version.to_owned(),
            tls_cipher_suites: names.iter().map(|name| (*name).to_owned()).collect(),
            ..KubeletConfiguration::default()
        };
        tls12(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn versions_and_suites_are_taken_as_a_kubelet_takes_them() {
        let gcm = || Tls12::With(vec![CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]);
        let chacha = CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
        let of_13 = "tlsCipherSuites (TLS 1.3 has suites of its own)";
        for (version, names, want, vain) in [
            ("", &[][..], Tls12::Any, None),
            ("VersionTLS10", &[], Tls12::Any, None),
            ("VersionTLS11", &[], Tls12::Any, None),
            ("VersionTLS12", &[], Tls12::Any, None),
            ("VersionTLS13", &[], Tls12::Refused, None),
            ("", &[GCM], gcm(), None),
            ("VersionTLS11", &[GCM, OF_13], gcm(), None),
            (
                "",
                &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"],
                Tls12::With(vec![chacha]),
                None,
            ),
            ("", &[OF_13], Tls12::Refused, None),
            (
                "",
                &[CBC, GCM, RC4],
                gcm(),
                Some(format!("tlsCipherSuites ({CBC}, {RC4})")),
            ),
            ("VersionTLS13", &[GCM], Tls12::Refused, Some(of_13.into())),
            ("VersionTLS13", &[CBC], Tls12::Refused, Some(of_13.into())),
        ] {
            let got = found(version, names);
            assert_eq!(got, Ok((want, vain)), "{version:?} {names:?}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused_by_name_and_value() {
        let unusable = format!("{CIPHER_SUITES}: \"{CBC}, {RC4}\": ");
        for (version, names, want, way_out) in [
            (
                "TLS12",
                &[][..],
                "--tls-min-version (tlsMinVersion): \"TLS12\": ",
                "VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13",
            ),
            (
                "",
                &[GCM, "TLS_X"],
                "--tls-cipher-suites (tlsCipherSuites): \"TLS_X\": ",
                GCM,
            ),
            (
                "VersionTLS13",
                &["TLS_X"],
                "--tls-cipher-suites (tlsCipherSuites): \"TLS_X\": ",
                GCM,
            ),
            ("", &[CBC, RC4], &unusable, GCM),
        ] {
            let error = found(version, names).unwrap_err();
            assert!(error.starts_with(want), "{error}");
            assert!(error.contains(way_out), "{error}");
        }
    }
}
