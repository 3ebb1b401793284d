//! Environments of made-up containers.

use super::*;
use serde_json::json;

fn referred() -> Referred {
    let config: ConfigMap = serde_json::from_value(json!({
        "data": {"a": "1", "b": "2", "bad=key": "x"}
    }))
    .unwrap();
    let secret: Secret = serde_json::from_value(json!({
        "data": {"token": "c2VjcmV0", "b": "c2VjcmV0LWI="}
    }))
    .unwrap();
    let api: Service = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "kubernetes"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}]},
    }))
    .unwrap();
    Referred {
        config_maps: [("cm".into(), Some(Arc::new(config))), ("gone".into(), None)].into(),
        secrets: [("s".into(), Some(Arc::new(secret)))].into(),
        services: vec![Arc::new(api)],
        files: [
            ("good", &[("A", "1"), ("EMPTY", "")][..], None),
            ("torn", &[("A", "1"), ("EMPTY", "")], Some("line 3: torn")),
            ("absent", &[], None),
            ("fifo", &[], Some("it is no file")),
        ]
        .map(|(path, values, wrong)| {
            let values = values
                .iter()
                .map(|&(name, value)| (name.into(), value.into()));
            let found = file::Found {
                values: values.collect(),
                wrong: wrong.map(str::to_owned),
                file: match path {
                    "absent" => "".into(),
                    _ => format!("/volumes/v/{path}").into(),
                },
            };
            (("v".to_owned(), path.to_owned()), found)
        })
        .into(),
    }
}

fn environment(container: serde_json::Value) -> Result<BTreeMap<String, String>, EnvError> {
    let container: Container = serde_json::from_value(container).unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": []}
    }))
    .unwrap();
    let list = build(&pod, &container, &NodeFacts::default(), &referred())?;
    Ok(list.into_iter().collect())
}

#[test]
fn a_variable_of_a_file_is_there_or_optional() {
    let with = |path: &str, key: &str, optional: bool| {
        let source = json!({"volumeName": "v", "path": path, "key": key, "optional": optional});
        let env = json!([{"name": "X", "valueFrom": {"fileKeyRef": source}}]);
        let found = environment(json!({"name": "c", "env": env}));
        found.map(|found| found.get("X").cloned())
    };
    for path in ["good", "torn"] {
        assert_eq!(with(path, "A", false).unwrap().as_deref(), Some("1"));
    }
    for (path, key) in [("good", "NONE"), ("good", "EMPTY"), ("torn", "EMPTY")] {
        assert_eq!(with(path, key, true).unwrap(), None, "{path} {key}");
        let error = with(path, key, false).unwrap_err().to_string();
        let want =
            format!("environment variable key {key:?} not found in file \"/volumes/v/{path}\"");
        assert_eq!(error, want);
    }
    assert_eq!(with("absent", "A", true).unwrap(), None);
    let error = with("absent", "A", false).unwrap_err().to_string();
    let want = "couldn't parse env file \"absent\" of volume \"v\": there is no such file";
    assert_eq!(error, want);
    for (path, why) in [("torn", "line 3: torn"), ("fifo", "it is no file")] {
        let error = with(path, "NONE", true).unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
    }
}

#[test]
fn what_comes_later_wins() {
    let env = environment(json!({
        "name": "c",
        "envFrom": [
            {"configMapRef": {"name": "cm"}},
            {"secretRef": {"name": "s"}, "prefix": "P_"},
            {"secretRef": {"name": "s"}},
            {"configMapRef": {"name": "gone", "optional": true}},
        ],
        "env": [{"name": "a", "value": "mine"}, {"name": "KUBERNETES_SERVICE_PORT", "value": "1"}],
    }))
    .unwrap();
    assert_eq!(env["a"], "mine");
    assert_eq!(env["b"], "secret-b");
    assert_eq!(env["P_token"], "secret");
    assert_eq!(env["KUBERNETES_SERVICE_HOST"], "10.96.0.1");
    assert_eq!(env["KUBERNETES_SERVICE_PORT"], "1");
    assert!(!env.contains_key("bad=key"));
}

#[test]
fn a_value_expands_what_stands_before_it() {
    let env = environment(json!({
        "name": "c",
        "envFrom": [{"configMapRef": {"name": "cm"}}],
        "env": [
            {"name": "EARLY", "value": "$(LATE)"},
            {"name": "LATE", "value": "$(a)-$(EARLY)-$(KUBERNETES_SERVICE_HOST)"},
            {"name": "FROM", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "b"}}},
            {"name": "ESCAPED", "value": "$$(FROM)"},
            {"name": "EMPTY"},
        ],
    }))
    .unwrap();
    assert_eq!(env["EARLY"], "$(LATE)");
    assert_eq!(env["LATE"], "1-$(LATE)-10.96.0.1");
    assert_eq!(env["FROM"], "2");
    assert_eq!(env["ESCAPED"], "$(FROM)");
    assert_eq!(env["EMPTY"], "");
}

#[test]
fn a_missing_key_is_told_in_the_kubelets_words() {
    for (source, message) in [
        (
            json!({"configMapKeyRef": {"name": "cm", "key": "k"}}),
            "couldn't find key k in ConfigMap ns/cm",
        ),
        (
            json!({"secretKeyRef": {"name": "s", "key": "k"}}),
            "couldn't find key k in Secret ns/s",
        ),
        (
            json!({"fieldRef": {"fieldPath": "spec.x"}}),
            "unsupported fieldPath: spec.x",
        ),
    ] {
        let env = json!([{"name": "X", "valueFrom": source}]);
        let error = environment(json!({"name": "c", "env": env})).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_missing_optional_key_leaves_the_variable_out() {
    for (name, key) in [("cm", "absent"), ("gone", "k")] {
        let source = json!({"configMapKeyRef": {"name": name, "key": key, "optional": true}});
        let env = json!([{"name": "X", "valueFrom": source}]);
        let env = environment(json!({"name": "c", "env": env})).unwrap();
        assert!(!env.contains_key("X"));
    }
}

#[test]
fn an_object_is_optional_only_when_every_reference_says_so() {
    let container: Container = serde_json::from_value(json!({
        "name": "c",
        "envFrom": [{"configMapRef": {"name": "x", "optional": true}}],
        "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k"}}}],
    }))
    .unwrap();
    let found: Vec<_> = references(&container).collect();
    assert_eq!(found, [(Kind::ConfigMap, "x", false)]);
}

#[test]
fn objects_are_asked_for_in_the_order_in_which_they_are_named() {
    let container: Container = serde_json::from_value(json!({
        "name": "c",
        "envFrom": [{"secretRef": {"name": "z"}}, {"configMapRef": {"name": "y"}}],
        "env": [
            {"name": "E", "valueFrom": {"secretKeyRef": {"name": "a", "key": "k"}}},
            {"name": "F", "valueFrom": {"configMapKeyRef": {"name": "y", "key": "k"}}},
        ],
    }))
    .unwrap();
    let names: Vec<_> = references(&container).map(|(_, name, _)| name).collect();
    assert_eq!(names, ["z", "y", "a"]);
}

#[test]
fn variables_are_such_as_a_program_can_be_given() {
    let doubled: Vec<_> = (1..200)
        .map(|at| {
            let before = at - 1;
            json!({"name": format!("V{at}"), "value": format!("$(V{before})$(V{before})")})
        })
        .collect();
    let chain = [vec![json!({"name": "V0", "value": "12345678"})], doubled].concat();
    // V14 and its name would have 131,076 bytes.
    let error = environment(json!({"name": "c", "env": chain})).unwrap_err();
    assert!(
        matches!(&error, EnvError::Long(name) if name == "V14"),
        "{error}"
    );
    assert!(environment(json!({"name": "c", "env": chain[..14]})).is_ok());
    assert!(error.to_string().len() < 150, "{error}");

    // Each may be passed, and not all.
    let env = |count: usize| -> Vec<_> {
        let long = |at| json!({"name": format!("W{at}"), "value": "$(V13)$(V12)"});
        let more = (0..count).map(long);
        chain[..14].iter().cloned().chain(more).collect()
    };
    assert!(environment(json!({"name": "c", "env": env(60)})).is_ok());
    let error = environment(json!({"name": "c", "env": env(20_000)})).unwrap_err();
    assert!(matches!(&error, EnvError::Most(_)), "{error}");
}

#[test]
fn references_to_a_large_key_are_added_up_before_they_are_copied() {
    let with = |bytes: usize, count: usize| {
        let object: ConfigMap =
            serde_json::from_value(json!({"data": {"k": "x".repeat(bytes)}})).unwrap();
        let source = json!({"configMapKeyRef": {"name": "cm", "key": "k"}});
        let env = (0..count).map(|at| json!({"name": format!("V{at}"), "valueFrom": source}));
        let env: Vec<_> = env.collect();
        let container: Container =
            serde_json::from_value(json!({"name": "c", "env": env})).unwrap();
        let referred = Referred {
            config_maps: [("cm".into(), Some(Arc::new(object)))].into(),
            ..Referred::default()
        };
        build(
            &Pod::default(),
            &container,
            &NodeFacts::default(),
            &referred,
        )
        .map(|list| list.len())
        .map_err(|error| error.to_string())
    };
    assert_eq!(with(expand::LONGEST - "V0=".len(), 1), Ok(1));
    assert_eq!(
        with(expand::LONGEST, 1),
        Err("environment variable \"V0\" is longer than the 131071 bytes that a program can be given at once".into())
    );
    assert_eq!(
        with(100_000, 10_000),
        Err("the environment has more than the 6291456 bytes that a program can be given, at variable \"V62\"".into())
    );
}

#[test]
fn a_long_value_that_another_takes_the_place_of_is_no_fault() {
    let object: ConfigMap =
        serde_json::from_value(json!({"data": {"K": "x".repeat(200_000)}})).unwrap();
    let container: Container = serde_json::from_value(json!({"name": "c",
        "envFrom": [{"configMapRef": {"name": "cm"}}], "env": [{"name": "K", "value": "short"}]}))
    .unwrap();
    let referred = Referred {
        config_maps: [("cm".into(), Some(Arc::new(object)))].into(),
        ..Referred::default()
    };
    let list = build(
        &Pod::default(),
        &container,
        &NodeFacts::default(),
        &referred,
    )
    .unwrap();
    assert_eq!(list, [("K".to_owned(), "short".to_owned())]);
}
