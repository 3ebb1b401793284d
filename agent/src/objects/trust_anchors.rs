//! Which ClusterTrustBundles a projection means, and what they hold together: PEM without duplicates, headers and
//! text between blocks. Pure; bundles are untrusted text that the API server has checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use kube::core::{Selector, SelectorExt};

/// Longest label selector, as text; a kubelet's.
const LONGEST_SELECTOR: usize = 100 * 1024;
/// Most text that goes into one file. The API server takes 1 MiB for a bundle, and any number of bundles.
const MOST_TEXT: usize = 16 << 20;
/// Length of a line of PEM (RFC 7468).
const LINE: usize = 64;
/// Bits after the last byte are of no interest, as in Go.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// What is of interest in a ClusterTrustBundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bundle {
    /// Empty when no signer has published it.
    pub(super) signer: String,
    /// Its labels.
    pub(super) labels: BTreeMap<String, String>,
    /// Certificates, as the bundle has them.
    pub(super) pem: String,
}

/// Bundles by name.
pub(super) type Bundles = BTreeMap<String, Arc<Bundle>>;

/// The certificates that the projection asks for, in an order that depends on nothing but them.
pub(super) fn anchors(
    bundles: &Bundles,
    wanted: &ClusterTrustBundleProjection,
) -> Result<String, String> {
    let optional = wanted.optional.unwrap_or(false);
    let found = match (&wanted.name, &wanted.signer_name) {
        (Some(name), _) => {
            let found = bundles.get(name);
            if found.is_none() && !optional {
                return Err(format!(
                    "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"{name}\" not found"
                ));
            }
            found.into_iter().collect()
        }
        (None, Some(signer)) => {
            let found = of_signer(bundles, signer, wanted)?;
            if found.is_empty() && !optional {
                return Err(
                    "combination of signerName and labelSelector matched zero ClusterTrustBundles"
                        .into(),
                );
            }
            found
        }
        (None, None) => {
            return Err(
                "ClusterTrustBundle projection requires either name or signerName to be set".into(),
            );
        }
    };
    let text: usize = found.iter().map(|bundle| bundle.pem.len()).sum();
    if text > MOST_TEXT {
        return Err(format!(
            "while normalizing trust anchors: {text} bytes of ClusterTrustBundles are more than {MOST_TEXT}"
        ));
    }
    let mut blocks = BTreeSet::new();
    for bundle in found {
        decode(&bundle.pem, &mut blocks);
    }
    Ok(blocks.iter().map(|block| encode(block)).collect())
}

/// The signer's bundles that the selector selects: none when there is no selector, all when it is empty.
fn of_signer<'b>(
    bundles: &'b Bundles,
    signer: &str,
    wanted: &ClusterTrustBundleProjection,
) -> Result<Vec<&'b Arc<Bundle>>, String> {
    let Some(selector) = wanted.label_selector.clone() else {
        return Ok(Vec::new());
    };
    let selector = Selector::try_from(selector)
        .map_err(|error| format!("while parsing label selector: {error}"))?;
    let length = selector.to_string().len();
    if length > LONGEST_SELECTOR {
        return Err(format!(
            "label selector length ({length}) is larger than {LONGEST_SELECTOR}"
        ));
    }
    let selected =
        |bundle: &&Arc<Bundle>| bundle.signer == signer && selector.matches(&bundle.labels);
    Ok(bundles.values().filter(selected).collect())
}

/// A block of PEM whose end has not come yet.
struct Block<'t> {
    label: &'t str,
    body: String,
}

/// Adds the contents of each block that is well-formed; the others are passed over. One pass, however they are nested.
fn decode(text: &str, blocks: &mut BTreeSet<Vec<u8>>) {
    let mut open: Option<Block<'_>> = None;
    for line in text.lines().map(str::trim_end) {
        if let Some(label) = boundary(line, "-----BEGIN ") {
            let body = String::new();
            open = Some(Block { label, body });
        } else if let Some(label) = boundary(line, "-----END ") {
            let ended = open.take().filter(|block| block.label == label);
            blocks.extend(ended.and_then(|block| BASE64.decode(block.body).ok()));
        } else if let Some(block) = &mut open {
            let header = block.body.is_empty() && line.contains(':');
            if !header {
                block.body.extend(line.split_ascii_whitespace());
            }
        }
    }
}

/// The label of a line that begins or ends a block.
fn boundary<'l>(line: &'l str, word: &str) -> Option<&'l str> {
    line.strip_prefix(word)?.strip_suffix("-----")
}

/// One certificate.
fn encode(block: &[u8]) -> String {
    let body = BASE64.encode(block);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn bundles(list: &[(&str, &str, Value, &str)]) -> Bundles {
        let bundle = |(name, signer, labels, pem): &(&str, &str, Value, &str)| {
            let labels = serde_json::from_value(labels.clone()).unwrap();
            let (signer, pem) = ((*signer).to_owned(), (*pem).to_owned());
            let bundle = Bundle {
                signer,
                labels,
                pem,
            };
            ((*name).to_owned(), Arc::new(bundle))
        };
        list.iter().map(bundle).collect()
    }

    fn ask(bundles: &Bundles, wanted: Value) -> Result<String, String> {
        anchors(bundles, &serde_json::from_value(wanted).unwrap())
    }

    fn block(body: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn blocks_are_written_once_each_without_headers_and_text_between_them() {
        let long = "A".repeat(68);
        let (head, tail) = (&long[..64], &long[64..]);
        for (pem, expected) in [
            (
                format!("one\n{}two\n{}", block("Yg=="), block("YQ==")),
                block("YQ==") + &block("Yg=="),
            ),
            (block("YQ==") + &block("Y Q\t=\n="), block("YQ==")),
            (block("YQ==").replace('\n', "\r\n"), block("YQ==")),
            (block("Key: value\nOther: x\n\nYQ=="), block("YQ==")),
            (block("YR=="), block("YQ==")),
            (block(&long), block(&format!("{head}\n{tail}"))),
            // What is not well-formed is passed over, and what follows it is not.
            (
                block("Y") + &block("YQ==") + "-----BEGIN CERTIFICATE-----\nYg==",
                block("YQ=="),
            ),
            (
                format!("-----BEGIN CERTIFICATE-----\nYg==\n{}", block("YQ==")),
                block("YQ=="),
            ),
            (
                "-----BEGIN A-----\nYg==\n-----END B-----\n".to_owned(),
                String::new(),
            ),
            (format!("x{}", block("YQ==")), String::new()),
            (String::new(), String::new()),
        ] {
            let bundles = bundles(&[("b", "", json!({}), &pem)]);
            assert_eq!(
                ask(&bundles, json!({"name": "b", "path": "p"})).as_ref(),
                Ok(&expected),
                "{pem}"
            );
        }
    }

    #[test]
    fn a_projection_means_a_name_or_a_signers_bundles_with_the_labels() {
        let (a, b, c, d) = (block("YQ=="), block("Yg=="), block("Yw=="), block("ZA=="));
        let bundles = bundles(&[
            ("a", "", json!({"live": "yes"}), &a),
            ("s:b", "x/s", json!({"live": "yes"}), &b),
            ("s:c", "x/s", json!({"live": "no"}), &(c.clone() + &b)),
            ("t:d", "x/t", json!({"live": "yes"}), &d),
        ]);
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "live", "operator": operator, "values": values}]});
        let of_s =
            |selector: Value| json!({"signerName": "x/s", "labelSelector": selector, "path": "p"});
        for (wanted, expected) in [
            (json!({"name": "a", "path": "p"}), Ok(a)),
            (json!({"name": "s:b", "path": "p"}), Ok(b.clone())),
            (of_s(json!({})), Ok(b.clone() + &c)),
            (of_s(json!(null)), Err(none)),
            (of_s(json!({"matchLabels": {"live": "yes"}})), Ok(b.clone())),
            (of_s(json!({"matchLabels": {"live": "maybe"}})), Err(none)),
            (
                of_s(expression("NotIn", json!(["yes"]))),
                Ok(b.clone() + &c),
            ),
            (of_s(expression("In", json!(["yes"]))), Ok(b)),
            (of_s(expression("DoesNotExist", json!(null))), Err(none)),
            (
                json!({"signerName": "x/none", "labelSelector": {}, "path": "p"}),
                Err(none),
            ),
            (
                json!({"name": "gone", "path": "p"}),
                Err(
                    "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"gone\" not found",
                ),
            ),
            (
                json!({"path": "p"}),
                Err("ClusterTrustBundle projection requires either name or signerName to be set"),
            ),
        ] {
            let mut optional = wanted.clone();
            optional["optional"] = json!(true);
            let named = wanted["name"].is_string() || wanted["signerName"].is_string();
            if expected.is_err() && named {
                assert_eq!(ask(&bundles, optional).as_deref(), Ok(""), "{wanted}");
            }
            assert_eq!(
                ask(&bundles, wanted.clone()),
                expected.map_err(str::to_owned),
                "{wanted}"
            );
        }
    }

    #[test]
    fn too_much_text_and_too_long_a_selector_are_refused() {
        let big = "x".repeat(MOST_TEXT / 2 + 1);
        let of = |name| (name, "x/s", json!({}), big.as_str());
        let bundles = bundles(&[of("s:a"), of("s:b")]);
        let all = json!({"signerName": "x/s", "labelSelector": {}, "path": "p"});
        let error = ask(&bundles, all).unwrap_err();
        assert!(error.ends_with("are more than 16777216"), "{error}");
        let selector = json!({"matchLabels": {"k": "v".repeat(LONGEST_SELECTOR)}});
        let long = json!({"signerName": "x/s", "labelSelector": selector, "path": "p"});
        let error = ask(&bundles, long).unwrap_err();
        assert_eq!(
            error,
            "label selector length (102402) is larger than 102400"
        );
    }

    proptest::proptest! {
        #[test]
        fn what_was_written_is_read_back_the_same(parts in proptest::collection::vec("(-----(BEGIN|END) A-----\n|[A-Za-z=:]{0,8}\n)", 0..40)) {
            let once = |text: &str| {
                let mut blocks = BTreeSet::new();
                decode(text, &mut blocks);
                blocks.iter().map(|block| encode(block)).collect::<String>()
            };
            let first = once(&parts.concat());
            proptest::prop_assert_eq!(once(&first), first);
        }
    }
}
