use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What a message holds: of each field its number, with a varint or bytes.
#[derive(Debug, Clone, PartialEq)]
enum Got {
    Number(i64),
    Bytes(Vec<u8>),
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    prost::encoding::decode_varint(bytes).unwrap()
}

/// The fields of a message in the order in which they were written.
fn read(mut bytes: &[u8]) -> Vec<(u32, Got)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (number, wire) = prost::encoding::decode_key(&mut bytes).unwrap();
        let got = match wire {
            WireType::Varint => Got::Number(read_varint(&mut bytes).cast_signed()),
            WireType::LengthDelimited => {
                let length = usize::try_from(read_varint(&mut bytes)).unwrap();
                let (inside, rest) = bytes.split_at(length);
                bytes = rest;
                Got::Bytes(inside.to_vec())
            }
            other => panic!("nothing is written as {other:?}"),
        };
        fields.push((number, got));
    }
    fields
}

/// A message's object, written and read.
fn written(message: &'static str, object: Value) -> Vec<(u32, Got)> {
    let mut out = Vec::new();
    whole(message, object.as_object().unwrap(), &mut out).unwrap();
    read(&out)
}

fn text(text: &str) -> Got {
    Got::Bytes(text.as_bytes().to_vec())
}

fn message(fields: &[(u32, Got)]) -> Got {
    let mut out = Vec::new();
    for (number, got) in fields {
        match got {
            Got::Number(value) => varint(*number, *value, &mut out),
            Got::Bytes(bytes) => delimited(*number, bytes, &mut out),
        }
    }
    Got::Bytes(out)
}

#[test]
fn every_message_of_the_table_is_whole() {
    for (name, fields) in fields::all() {
        assert!(!fields.is_empty(), "{name}");
        let numbers: Vec<u32> = fields.iter().map(|field| field.number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{name}: {numbers:?}");
        let mut names = HashSet::new();
        for field in fields {
            assert!(names.insert(field.json), "{name}.{}", field.json);
            if let Kind::Message(inner) = field.kind {
                assert!(fields::all().contains_key(inner), "{name}: {inner}");
            }
            if field.shape == Shape::Inline {
                let Kind::Message(inner) = field.kind else {
                    panic!("{name}: an inline field that is no message");
                };
                let twice = fields::of(inner)
                    .iter()
                    .find(|one| names.contains(one.json));
                assert!(twice.is_none(), "{name}: {twice:?}");
            }
        }
    }
}

#[test]
fn what_stands_in_the_object_is_written_in_the_order_of_the_numbers() {
    let container = json!({
        "image": "", "name": "web", "stdin": false, "tty": true,
        "args": [], "command": ["a", ""], "env": null,
        "ports": [{"containerPort": 0, "protocol": "TCP"}],
        "securityContext": {},
    });
    assert_eq!(
        written("Container", container),
        [
            (1, text("web")),
            (2, text("")),
            (3, text("a")),
            (3, text("")),
            (6, message(&[(3, Got::Number(0)), (4, text("TCP"))])),
            (15, message(&[])),
            (16, Got::Number(0)),
            (18, Got::Number(1)),
        ]
    );
}

#[test]
fn numbers_keep_their_sign_and_size() {
    for number in [0, 1, 127, 128, -1, i64::from(i32::MIN), i64::MAX, i64::MIN] {
        let context = json!({"runAsUser": number, "supplementalGroups": [number, 7]});
        assert_eq!(
            written("PodSecurityContext", context),
            [
                (2, Got::Number(number)),
                (4, Got::Number(number)),
                (4, Got::Number(7)),
            ]
        );
    }
}

#[test]
fn fields_that_stand_among_others_are_a_message_of_their_own() {
    let volume = json!({"emptyDir": {"sizeLimit": "1Mi"}, "name": "scratch"});
    let limit = message(&[(2, message(&[(1, text("1Mi"))]))]);
    assert_eq!(
        written("Volume", volume),
        [(1, text("scratch")), (2, message(&[(2, limit)]))]
    );
    let probe = json!({"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 3});
    let port = message(&[(1, Got::Number(1)), (2, Got::Number(0)), (3, text("web"))]);
    let get = message(&[(1, text("/")), (2, port)]);
    assert_eq!(
        written("Probe", probe),
        [(1, message(&[(2, get)])), (4, Got::Number(3))]
    );
    // A handler that is not there is not written either.
    assert_eq!(
        written("Probe", json!({"periodSeconds": 3})),
        [(4, Got::Number(3))]
    );
}

#[test]
fn odd_types_are_written_as_kubernetes_has_them() {
    let port = message(&[(1, Got::Number(0)), (2, Got::Number(80)), (3, text(""))]);
    assert_eq!(written("TCPSocketAction", json!({"port": 80})), [(1, port)]);
    let time = message(&[(1, Got::Number(1_700_000_000)), (2, Got::Number(0))]);
    assert_eq!(
        written(
            "ContainerStateRunning",
            json!({"startedAt": "2023-11-14T22:13:20Z"})
        ),
        [(1, time)]
    );
    let raw = message(&[(1, text(r#"{"f:spec":{}}"#))]);
    assert_eq!(
        written("ManagedFieldsEntry", json!({"fieldsV1": {"f:spec": {}}})),
        [(7, raw)]
    );
}

#[test]
fn maps_are_written_in_the_order_of_their_keys() {
    let entry = |key: &str, value: Got| message(&[(1, text(key)), (2, value)]);
    let labels = json!({"labels": {"b": "2", "a": "", "C": "3"}});
    assert_eq!(
        written("ObjectMeta", labels),
        [
            (11, entry("C", text("3"))),
            (11, entry("a", text(""))),
            (11, entry("b", text("2"))),
        ]
    );
    let quantity = |text_: &str| message(&[(1, text(text_))]);
    assert_eq!(
        written(
            "ResourceRequirements",
            json!({"limits": {"memory": "64Mi", "cpu": "10m"}})
        ),
        [
            (1, entry("cpu", quantity("10m"))),
            (1, entry("memory", quantity("64Mi"))),
        ]
    );
}

#[test]
fn what_the_table_does_not_foresee_is_an_error_that_names_it() {
    let refused = |message: &'static str, object: Value| {
        let object = object.as_object().unwrap();
        whole(message, object, &mut Vec::new())
            .unwrap_err()
            .to_string()
    };
    for (object, field) in [
        (json!({"name": "web", "novelty": 1}), "Container.novelty"),
        (json!({"name": 3}), "Container.name"),
        (json!({"stdin": "yes"}), "Container.stdin"),
        (json!({"command": "sh"}), "Container.command"),
        (json!({"command": [1]}), "Container.command"),
        (json!({"ports": [{"novelty": {}}]}), "ContainerPort.novelty"),
        (
            json!({"resources": {"limits": ["cpu"]}}),
            "ResourceRequirements.limits",
        ),
        (
            json!({"livenessProbe": {"exec": {}, "novelty": true}}),
            "Probe.novelty",
        ),
    ] {
        let expected = format!("{field} cannot be written in protobuf");
        assert_eq!(refused("Container", object), expected);
    }
    let soon = json!({"startedAt": "soon"});
    assert_eq!(
        refused("ContainerStateRunning", soon),
        "ContainerStateRunning.startedAt cannot be written in protobuf"
    );
    // What is null is not there, whatever it is called.
    let absent = json!({"name": "web", "novelty": null});
    assert_eq!(written("Container", absent), [(1, text("web"))]);
}

#[test]
fn a_pod_has_the_status_that_is_told_and_no_type() {
    let found: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "a"}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let status = PodStatus {
        phase: Some("Failed".into()),
        ..PodStatus::default()
    };
    let container = message(&[(1, text("a"))]);
    assert_eq!(
        read(&pod(&found, &status).unwrap()),
        [
            (1, message(&[(1, text("web"))])),
            (2, message(&[(2, container)])),
            (3, message(&[(1, text("Failed"))])),
        ]
    );
}

/// A value of a field's kind, or of any other.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let names = prop_oneof![
        "(name|spec|containers|ports|port|limits|labels|emptyDir|startedAt)",
        ".{0,4}"
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(names.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_that_json_can_say_panics(value in any_value()) {
        if let Some(object) = value.as_object() {
            for message in ["Pod", "Container", "Volume", "Probe"] {
                let mut out = Vec::new();
                if whole(message, object, &mut out).is_ok() {
                    read(&out);
                }
            }
        }
    }
}
