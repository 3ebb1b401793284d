//! Host ports.

use super::*;

#[test]
fn host_ports_meet_on_the_same_address_or_on_all() {
    let pod = |ip: &str, protocol: &str, port: i32| {
        with(json!({"containers": [{"name": "c", "image": "i", "ports": [
            {"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}]}]}))
    };
    let others = [
        named(pod("127.0.0.1", "TCP", 54321), "a"),
        named(pod("10.0.0.1", "UDP", 54321), "b"),
    ];
    let table = [
        (pod("10.0.0.1", "TCP", 54321), true),
        (pod("127.0.0.1", "UDP", 54321), true),
        (pod("127.0.0.1", "SCTP", 54321), true),
        (pod("127.0.0.1", "TCP", 54322), true),
        (pod("127.0.0.1", "TCP", 54321), false),
        (pod("", "TCP", 54321), false),
        (pod("0.0.0.0", "UDP", 54321), false),
        (
            with(
                json!({"initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always",
            "ports": [{"containerPort": 1, "hostPort": 54321}]}]}),
            ),
            false,
        ),
        (
            with(json!({"initContainers": [{"name": "i", "image": "i",
            "ports": [{"containerPort": 1, "hostPort": 54321}]}]})),
            true,
        ),
    ];
    let refused = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    for (pod, free) in table {
        let want = if free { "admitted" } else { refused };
        assert_eq!(told(&pod, &node(), &others), want, "{pod:?}");
        let alone = NodeView::default();
        assert_eq!(
            told(&pod, &alone, &others),
            want,
            "without a cluster: {pod:?}"
        );
    }
}

#[test]
fn no_host_port_leads_away_what_is_meant_for_the_node() {
    let pod = |ip: &str, protocol: &str, port: i32, host_network: bool| {
        with(
            json!({"hostNetwork": host_network, "containers": [{"name": "c", "image": "i", "ports": [
            {"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}]}]}),
        )
    };
    let everywhere = "0.0.0.0:10250";
    let table = [
        (pod("", "TCP", 10250, false), Some(everywhere)),
        (pod("0.0.0.0", "TCP", 10250, false), Some(everywhere)),
        (pod("10.0.0.1", "TCP", 10250, false), Some(everywhere)),
        (pod("", "TCP", 10248, false), Some("127.0.0.1:10248")),
        (
            pod("127.0.0.1", "TCP", 10248, false),
            Some("127.0.0.1:10248"),
        ),
        (pod("fd00::1", "TCP", 10255, false), Some("[::]:10255")),
        (pod("::", "TCP", 10255, false), Some("[::]:10255")),
        (pod("10.0.0.1", "TCP", 10255, false), Some("[::]:10255")),
        (pod("fd00::1", "TCP", 10250, false), None),
        (pod("::", "TCP", 10250, false), None),
        (pod("10.0.0.1", "TCP", 10248, false), None),
        (pod("", "UDP", 10250, false), None),
        (pod("", "TCP", 10251, false), None),
        (pod("", "TCP", 10250, true), None),
    ];
    let own = [everywhere, "127.0.0.1:10248", "[::]:10255"];
    let listens: Vec<_> = own.iter().map(|own| own.parse().unwrap()).collect();
    for (pod, own) in table {
        let want = own.map_or("admitted".to_owned(), |own| {
            format!(
                "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: \
                 the node itself listens on {own}"
            )
        });
        for node in [node(), NodeView::default()] {
            let node = NodeView {
                listens: listens.clone(),
                ..node
            };
            assert_eq!(told(&pod, &node, &[]), want, "{pod:?}");
        }
    }
}
