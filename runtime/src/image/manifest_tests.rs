//! Documents: what is read, chosen and refused.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const HEX: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

fn entry(media_type: &str) -> Value {
    json!({"mediaType": media_type, "digest": HEX, "size": 5})
}

fn manifest() -> Value {
    json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST,
        "config": entry("application/vnd.oci.image.config.v1+json"),
        "layers": [entry(LAYER)],
    })
}

fn read(document: &Value, media_type: &str) -> Result<Document, ManifestError> {
    parse(document.to_string().as_bytes(), media_type)
}

#[test]
fn both_families_are_read_and_the_kind_may_come_from_outside_or_inside() {
    assert!(matches!(
        read(&manifest(), OCI_MANIFEST),
        Ok(Document::Manifest(_))
    ));
    assert!(matches!(
        read(&manifest(), "application/json; charset=utf-8"),
        Ok(Document::Manifest(_))
    ));
    let mut docker = manifest();
    docker["mediaType"] = DOCKER_MANIFEST.into();
    docker["layers"] = json!([
        entry("application/vnd.docker.image.rootfs.diff.tar.gzip"),
        entry("application/vnd.docker.image.rootfs.diff.tar.zstd"),
        entry("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"),
        entry("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"),
    ]);
    assert!(matches!(
        read(&docker, DOCKER_MANIFEST),
        Ok(Document::Manifest(_))
    ));
    let index = json!({"schemaVersion": 2, "manifests": [entry(OCI_MANIFEST)]});
    assert!(matches!(read(&index, OCI_INDEX), Ok(Document::Index(_))));
    assert!(matches!(read(&index, ""), Ok(Document::Index(_))));
}

#[test]
fn what_could_be_read_as_two_kinds_is_refused() {
    let mut both = manifest();
    both["manifests"] = json!([entry(OCI_MANIFEST)]);
    assert!(matches!(
        read(&both, OCI_MANIFEST),
        Err(ManifestError::TwoKinds)
    ));
    assert!(matches!(
        read(&manifest(), OCI_INDEX),
        Err(ManifestError::Ambiguous { .. })
    ));
    assert!(matches!(
        read(&manifest(), DOCKER_MANIFEST),
        Err(ManifestError::Ambiguous { .. })
    ));
    let index = json!({"schemaVersion": 2, "manifests": []});
    assert!(read(&index, OCI_MANIFEST).is_err());
}

#[test]
fn old_kinds_and_artifacts_are_named_in_the_error() {
    let old = json!({"schemaVersion": 1, "name": "a", "fsLayers": []});
    let signed = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    for media_type in ["", signed] {
        let error = read(&old, media_type).unwrap_err();
        assert!(matches!(error, ManifestError::MediaType(_)), "{error}");
    }
    assert!(read(&old, signed).unwrap_err().to_string().contains(signed));
    let mut chart = manifest();
    chart["layers"] = json!([entry("application/vnd.cncf.helm.chart.content.v1.tar+gzip")]);
    assert!(matches!(
        read(&chart, OCI_MANIFEST),
        Err(ManifestError::MediaType(_))
    ));
}

#[test]
fn bad_digests_sizes_and_numbers_are_refused() {
    for (field, value) in [
        ("digest", json!("sha256:../../../../etc/passwd")),
        ("digest", json!("sha512:00")),
        ("digest", json!("")),
        ("digest", Value::Null),
        ("size", json!(-1)),
        ("size", json!(1.5)),
        ("size", json!(1e300)),
        ("size", Value::Null),
    ] {
        let mut document = manifest();
        document["layers"][0][field] = value.clone();
        assert!(read(&document, OCI_MANIFEST).is_err(), "{field} {value}");
    }
    let mut many = manifest();
    many["layers"] = vec![entry(LAYER); MAX_LAYERS + 1].into();
    assert!(matches!(
        read(&many, OCI_MANIFEST),
        Err(ManifestError::TooMany { .. })
    ));
    let wide = json!({"schemaVersion": 2, "manifests": vec![entry(OCI_MANIFEST); 1001]});
    assert!(matches!(
        read(&wide, OCI_INDEX),
        Err(ManifestError::TooMany { .. })
    ));
    let deep = "[".repeat(100_000);
    assert!(parse(deep.as_bytes(), "").is_err());
}

#[test]
fn the_config_gives_command_and_labels_within_limits() {
    let config = json!({
        "architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z",
        "config": {
            "Entrypoint": ["/a"], "Cmd": null, "Env": ["A=b"], "WorkingDir": "/w", "User": "u",
            "Labels": {"short": "x", "long": "y".repeat(5000)}, "ExposedPorts": {"80/tcp": {}},
            "Volumes": {"/v": {}}, "StopSignal": "SIGINT",
        },
        "rootfs": {"type": "layers", "diff_ids": [HEX]}, "history": [{}],
    });
    let parsed = parse_config(config.to_string().as_bytes()).unwrap();
    assert_eq!(parsed.facts.entrypoint, ["/a"]);
    assert!(parsed.facts.cmd.is_empty());
    assert_eq!(parsed.labels.len(), 1);
    assert_eq!(
        (parsed.exposed_ports, parsed.facts.volumes),
        (vec!["80/tcp".to_owned()], vec!["/v".to_owned()])
    );
    assert!(parse_config(br#"{"rootfs":{"type":"layers","diff_ids":null}}"#).is_ok());
    assert!(parse_config(br#"{"rootfs":{"diff_ids":["sha256:x"]}}"#).is_err());
    assert!(matches!(
        check_config(&ImageConfig::default(), 1),
        Err(ManifestError::Layers { .. })
    ));
}

fn descriptor(os: &str, architecture: &str, variant: &str, attached: bool) -> Descriptor {
    let text = |text: &str| text.to_owned();
    let platform = Platform {
        os: text(os),
        architecture: text(architecture),
        variant: text(variant),
    };
    let key = "vnd.docker.reference.type".to_owned();
    Descriptor {
        media_type: OCI_MANIFEST.to_owned(),
        digest: Digest::of(format!("{os}/{architecture}/{variant}").as_bytes()),
        size: 1,
        platform: (!os.is_empty()).then_some(platform),
        annotations: attached.then(|| (key, String::new())).into_iter().collect(),
    }
}

#[test]
fn the_platforms_own_manifest_is_chosen_and_attachments_never() {
    let host = |architecture: &str, variant: &str| Platform {
        os: "linux".to_owned(),
        architecture: architecture.to_owned(),
        variant: variant.to_owned(),
    };
    let index = [
        descriptor("unknown", "unknown", "", true),
        descriptor("linux", "amd64", "v3", false),
        descriptor("linux", "amd64", "", false),
        descriptor("linux", "arm", "v6", false),
        descriptor("linux", "arm", "v7", false),
        descriptor("linux", "arm", "v8", false),
        descriptor("linux", "arm64", "v8", false),
        descriptor("windows", "amd64", "", false),
    ];
    let chosen =
        |host: Platform| choose(&index, &host).map(|d| d.platform.clone().unwrap().variant);
    assert_eq!(chosen(host("amd64", "")).as_deref(), Some(""));
    assert_eq!(chosen(host("arm", "v7")).as_deref(), Some("v7"));
    assert_eq!(chosen(host("arm64", "v8")).as_deref(), Some("v8"));
    assert_eq!(chosen(host("riscv64", "")), None);
    let nameless = [descriptor("", "", "", true), descriptor("", "", "", false)];
    assert_eq!(choose(&nameless, &host("amd64", "")), Some(&nameless[1]));
}

#[test]
fn a_config_is_complained_of_by_its_field() {
    let parsed = |config: &str| {
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{config},"rootfs":{{"diff_ids":[]}}}}"#
        );
        parse_config(text.as_bytes())
    };
    for (config, field) in [
        (r#"{"Entrypoint":"/bin/sh"}"#, "config.Entrypoint"),
        (r#"{"Env":["A=1",7]}"#, "config.Env[1]"),
        (r#"{"Labels":{"a":[]}}"#, "config.Labels.a"),
        (r#"{"Volumes":["/data"]}"#, "config.Volumes"),
    ] {
        let said = parsed(config).unwrap_err().to_string();
        assert_eq!(said, format!("malformed image config, field {field}"));
    }
    let whole = parse_config(b"7").unwrap_err().to_string();
    assert_eq!(whole, "malformed image config");
    let labels = parsed(r#"{"Labels":{"a":null,"b":"c"}}"#).unwrap().labels;
    assert_eq!(
        labels,
        [("a", ""), ("b", "c")]
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .into()
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in ".{0,20}") {
        let _ = parse(&bytes, &kind);
        let _ = parse_config(&bytes);
    }

    #[test]
    fn no_mutation_of_a_manifest_makes_it_panic(at in 0_usize..4096, byte in any::<u8>(), cut in 0_usize..4096) {
        let mut bytes = manifest().to_string().into_bytes();
        let len = bytes.len();
        bytes[at % len] = byte;
        bytes.truncate(len - cut % len);
        let _ = parse(&bytes, OCI_MANIFEST);
    }
}
