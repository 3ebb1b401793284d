//! The Node object from made-up facts.

use serde_json::{Value, json};

use super::*;

fn facts() -> Facts {
    Facts {
        name: "n1".into(),
        hostname: "host1".into(),
        ips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        machine: Machine {
            cpus: 4,
            memory: 8 << 30,
            storage: 100 << 30,
            huge_pages: [("2Mi".into(), 1 << 30)].into(),
            architecture: "amd64".into(),
            ..Machine::default()
        },
        max_pods: 110,
        reserved: [("cpu".to_owned(), Amount::millis(100))].into(),
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        taints: Vec::new(),
        provider_id: String::new(),
        attach_detach: true,
        port: 10250,
        handlers: vec![String::new(), "runc".into()],
        user_namespaces: true,
        max_images: Some(1),
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn observed(network: Result<(), String>, seconds: i64) -> Observed {
    Observed {
        network,
        images: Vec::new(),
        at: at(seconds),
    }
}

#[test]
fn conditions_come_in_the_kubelets_order_and_words() {
    let status = status(&facts(), &observed(Ok(()), 1), None);
    let conditions = status.conditions.unwrap();
    let lines: Vec<String> = conditions
        .iter()
        .map(|c| {
            format!(
                "{} {} {}",
                c.type_,
                c.status,
                c.reason.as_deref().unwrap_or_default()
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            "MemoryPressure False KubeletHasSufficientMemory",
            "DiskPressure False KubeletHasNoDiskPressure",
            "PIDPressure False KubeletHasSufficientPID",
            "Ready True KubeletReady",
        ]
    );
}

#[test]
fn without_a_network_the_node_is_not_ready_and_says_so_in_the_known_words() {
    let status = status(&facts(), &observed(Err("no podCIDR".into()), 1), None);
    let ready = status.conditions.unwrap().pop().unwrap();
    assert_eq!(ready.status, "False");
    assert_eq!(
        ready.message.unwrap(),
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no podCIDR"
    );
}

#[test]
fn a_transition_is_dated_only_when_there_is_one() {
    let first = status(&facts(), &observed(Err("x".into()), 1), None);
    let second = status(&facts(), &observed(Err("x".into()), 2), Some(&first));
    let third = status(&facts(), &observed(Ok(()), 3), Some(&second));
    let times = |status: &NodeStatus| {
        let ready = status.conditions.as_ref().unwrap().last().unwrap().clone();
        (
            ready.last_transition_time.unwrap().0,
            ready.last_heartbeat_time.unwrap().0,
        )
    };
    assert_eq!(times(&second), (at(1), at(2)));
    assert_eq!(times(&third), (at(3), at(3)));
    assert!(tells(&first, &second) && !tells(&second, &third));
}

#[test]
fn what_is_reserved_and_huge_pages_are_not_allocatable() {
    let status = status(&facts(), &observed(Ok(()), 1), None);
    let (capacity, allocatable) = (status.capacity.unwrap(), status.allocatable.unwrap());
    assert_eq!(
        (capacity["cpu"].0.as_str(), allocatable["cpu"].0.as_str()),
        ("4", "3900m")
    );
    assert_eq!(
        (
            capacity["memory"].0.as_str(),
            allocatable["memory"].0.as_str()
        ),
        ("8388608Ki", "7340032Ki")
    );
    assert_eq!(capacity["hugepages-2Mi"].0, "1073741824");
    assert_eq!(capacity["pods"].0, "110");
}

#[test]
fn a_new_node_has_its_labels_addresses_and_no_owner() {
    let node = new_node(&facts(), status(&facts(), &observed(Ok(()), 1), None));
    let labels = node.metadata.labels.unwrap();
    assert_eq!(labels["kubernetes.io/hostname"], "n1");
    assert_eq!(labels["disk"], "ssd");
    assert!(node.metadata.owner_references.is_none());
    let addresses = node.status.unwrap().addresses.unwrap();
    let lines: Vec<_> = addresses
        .iter()
        .map(|a| format!("{} {}", a.type_, a.address))
        .collect();
    assert_eq!(
        lines,
        [
            "InternalIP 10.0.0.1",
            "InternalIP fd00::1",
            "Hostname host1"
        ]
    );
}

#[test]
fn only_the_largest_images_are_shown() {
    let image = |id: &str, size| Image {
        id: id.into(),
        repo_tags: vec![format!("r/{id}:1")],
        repo_digests: Vec::new(),
        size,
        user: String::new(),
        stop_signal: String::new(),
        pinned: false,
    };
    let shown = images(&[image("small", 1), image("large", 9)], Some(1));
    assert_eq!(
        shown[0].names.as_deref(),
        Some(&["r/large:1".to_owned()][..])
    );
    assert_eq!(shown.len(), 1);
}

#[test]
fn resources_that_are_gone_are_removed_but_not_those_of_others() {
    let now = status(&facts(), &observed(Ok(()), 1), None);
    let mut before = now.clone();
    for name in ["hugepages-1Gi", "example.com/gpu"] {
        before
            .capacity
            .as_mut()
            .unwrap()
            .insert(name.into(), Quantity("1".into()));
    }
    let patch = status_patch(&now, Some(&before));
    let capacity = patch["status"]["capacity"].as_object().unwrap();
    assert_eq!(capacity["hugepages-1Gi"], Value::Null);
    assert!(!capacity.contains_key("example.com/gpu"));
    assert_eq!(
        patch["status"]["addresses"][0],
        json!({"$patch": "replace"})
    );
}

#[test]
fn what_somebody_else_has_changed_is_noticed_and_what_they_added_is_not_ours() {
    let ours = status(&facts(), &observed(Ok(()), 1), None);
    let mut server = ours.clone();
    server.declared_features = None;
    server.conditions.as_mut().unwrap().insert(
        0,
        NodeCondition {
            type_: "NetworkUnavailable".into(),
            status: "False".into(),
            ..NodeCondition::default()
        },
    );
    server
        .capacity
        .as_mut()
        .unwrap()
        .insert("example.com/gpu".into(), Quantity("1".into()));
    server
        .capacity
        .as_mut()
        .unwrap()
        .insert("cpu".into(), Quantity("4000m".into()));
    assert!(tells(&server, &ours));
    let ready = server.conditions.as_mut().unwrap().last_mut().unwrap();
    ready.status = "Unknown".into();
    assert!(!tells(&server, &ours));
}
