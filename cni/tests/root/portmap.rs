//! Laws of host ports on the built-in network.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hanok_cni::{Attachment, Options, PortMapping, Runner, Source, netns};

use crate::rig::{BRIDGE, Pod, Rig, built_in, connect, in_scratch_namespace, serve, sh};

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn mapping(
    protocol: &str,
    host_ip: Option<&str>,
    host_port: u16,
    container_port: u16,
) -> PortMapping {
    PortMapping {
        protocol: protocol.into(),
        container_port,
        host_port,
        host_ip: host_ip.map(|ip| ip.parse().expect("an address")),
    }
}

async fn pod_with(rig: &Rig, runner: &Runner, id: &str, ports: Vec<PortMapping>) -> Pod {
    let attachment = Attachment {
        port_mappings: ports,
        ..rig.container(id).await
    };
    let result = runner
        .add(&attachment)
        .await
        .unwrap_or_else(|e| panic!("{}", e.chain()));
    Pod { attachment, result }
}

/// A second machine at 192.0.2.2, whose link to this one (192.0.2.1) is `up0`.
struct Outside(std::path::PathBuf);

impl Outside {
    async fn new(rig: &Rig) -> Self {
        let path = netns::new_path(&rig.pins()).expect("a path");
        netns::create(&path).await.expect("a namespace");
        sh(&format!(
            "ip link add up0 type veth peer name up1 && ip addr add 192.0.2.1/24 dev up0 && ip link set up0 up
             ip link set up1 netns {}",
            path.display()
        ));
        netns::run_in(&path, || {
            sh("ip addr add 192.0.2.2/24 dev up1; ip link set up1 up; ip route add default via 192.0.2.1");
        })
        .await
        .expect("a thread");
        Self(path)
    }

    async fn reaches(&self, target: SocketAddr) -> Option<IpAddr> {
        netns::run_in(&self.0, move || connect(target))
            .await
            .expect("a thread")
    }

    async fn remove(self) {
        sh("ip link del up0");
        netns::remove(&self.0).await.expect("it goes");
    }
}

/// The rules of host ports, without the comments' ids.
fn port_rules() -> String {
    sh(&format!(
        "nft list table inet hanok-{BRIDGE}-ports 2>/dev/null || true"
    ))
}

#[test]
fn root_a_host_port_leads_to_its_pod_from_everywhere() {
    in_scratch_namespace(|rig| async move {
        let outside = Outside::new(&rig).await;
        let runner = rig.runner();
        let pod = pod_with(&rig, &runner, "a", vec![mapping("tcp", None, 8080, 80)]).await;
        pod.serve(address("0.0.0.0:80")).await;
        let other = rig.pod(&runner, "b").await;
        let gateway: IpAddr = "10.123.0.1".parse().expect("an address");
        let node = address("192.0.2.1:8080");
        assert_eq!(
            outside.reaches(node).await,
            "192.0.2.2".parse().ok(),
            "another machine, whose address the pod sees"
        );
        assert!(connect(node).is_some(), "the node by its own address");
        assert_eq!(
            connect(address("127.0.0.1:8080")),
            Some(gateway),
            "the node's loopback"
        );
        assert_eq!(other.reaches(node).await, Some(gateway), "a neighbour");
        assert_eq!(pod.reaches(node).await, Some(gateway), "the pod itself");
        // Ports of others, and those of whom the node only routes for, are none of ours.
        serve(address("192.0.2.1:8081"));
        assert!(outside.reaches(address("192.0.2.1:8081")).await.is_some());
        netns::run_in(&outside.0, || serve(address("192.0.2.2:8080")))
            .await
            .expect("a thread");
        assert_eq!(
            other.reaches(address("192.0.2.2:8080")).await,
            "192.0.2.1".parse().ok(),
            "the same port of another machine"
        );
        rig.remove(&runner, &pod).await;
        assert_eq!(connect(node), None, "closed again");
        rig.remove(&runner, &other).await;
        outside.remove().await;
    });
}

#[test]
fn root_one_port_for_each_address_and_protocol() {
    in_scratch_namespace(|rig| async move {
        let outside = Outside::new(&rig).await;
        let runner = rig.runner();
        let local = vec![mapping("tcp", Some("127.0.0.1"), 54321, 80)];
        let node = vec![mapping("tcp", Some("192.0.2.1"), 54321, 80)];
        let datagrams = vec![mapping("udp", Some("192.0.2.1"), 54321, 80)];
        let a = pod_with(&rig, &runner, "a", local).await;
        let b = pod_with(&rig, &runner, "b", node).await;
        let c = pod_with(&rig, &runner, "c", datagrams).await;
        a.serve(address("0.0.0.0:80")).await;
        echo(&c, "c").await;
        assert!(
            connect(address("127.0.0.1:54321")).is_some(),
            "only a listens"
        );
        assert_eq!(connect(address("192.0.2.1:54321")), None, "b does not yet");
        b.serve(address("0.0.0.0:80")).await;
        assert!(
            outside.reaches(address("192.0.2.1:54321")).await.is_some(),
            "b"
        );
        let socket = UdpSocket::bind("192.0.2.1:0").expect("a socket");
        assert_eq!(ask(&socket, "192.0.2.1:54321"), "c");
        for pod in [&a, &b, &c] {
            rig.remove(&runner, pod).await;
        }
        outside.remove().await;
    });
}

#[test]
fn root_rules_go_with_their_pod_and_the_table_with_its_last_rule() {
    in_scratch_namespace(|rig| async move {
        let source = Source::Fixed(built_in(&["10.123.0.0/24", "fd00:123::/64"]));
        let runner = Runner::new(Options {
            source,
            ..rig.options.clone()
        });
        let plain = rig.pod(&runner, "plain").await;
        let before = sh("nft list ruleset");
        let ports = vec![
            mapping("tcp", None, 7000, 80),
            mapping("udp", None, 7000, 80),
            mapping("sctp", None, 7000, 80),
            mapping("tcp", Some("192.0.2.1"), 7001, 81),
            mapping("tcp", Some("192.0.2.9"), 7001, 81),
        ];
        let a = pod_with(&rig, &runner, "a", ports.clone()).await;
        let only_a = port_rules();
        assert!(
            only_a.contains("sctp dport 7000") && only_a.contains("ip6"),
            "{only_a}"
        );
        let b = pod_with(&rig, &runner, "b", vec![mapping("tcp", None, 7002, 80)]).await;
        assert!(port_rules().contains("tcp dport 7002"));
        runner
            .check(&a.attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        rig.remove(&runner, &b).await;
        assert_eq!(port_rules(), only_a, "a's rules are untouched");
        sh(&format!("nft flush table inet hanok-{BRIDGE}-ports"));
        assert!(
            runner.check(&a.attachment).await.is_err(),
            "CHECK sees that rules are gone"
        );
        rig.remove(&runner, &a).await;
        let again = pod_with(&rig, &runner, "a", ports).await;
        // The namespace is gone before DEL, which comes twice.
        netns::remove(&again.attachment.netns)
            .await
            .expect("it goes");
        runner
            .del(&again.attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        runner
            .del(&again.attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        assert_eq!(sh("nft list ruleset"), before);
        rig.remove(&runner, &plain).await;
    });
}

#[test]
fn root_many_pods_at_once_keep_their_own_rules() {
    in_scratch_namespace(|rig| async move {
        let runner = Arc::new(rig.runner());
        let mut adding = Vec::new();
        for n in 0..12u16 {
            let attachment = Attachment {
                port_mappings: vec![mapping("tcp", None, 9000 + n, 80)],
                ..rig.container(&format!("p{n}")).await
            };
            let runner = runner.clone();
            adding.push(tokio::spawn(async move {
                let result = runner.add(&attachment).await;
                let result = result.unwrap_or_else(|e| panic!("{}", e.chain()));
                Pod { attachment, result }
            }));
        }
        let mut pods = Vec::new();
        for added in adding {
            pods.push(added.await.expect("it does not panic"));
        }
        let rules = port_rules();
        for n in 0..12 {
            assert_eq!(
                rules.matches(&format!("dport {} ", 9000 + n)).count(),
                2,
                "{rules}"
            );
        }
        assert_eq!(rules.matches("iifname").count(), 1, "{rules}");
        for pod in &pods {
            rig.remove(&runner, pod).await;
        }
        assert_eq!(port_rules(), "");
    });
}

#[test]
fn root_a_steady_sender_of_datagrams_finds_the_new_pod() {
    in_scratch_namespace(|rig| async move {
        let outside = Outside::new(&rig).await;
        let runner = rig.runner();
        let ports = || vec![mapping("udp", None, 6000, 60)];
        // The first pod brings the bridge and with it forwarding; the sender begins before there is a receiver.
        let plain = rig.pod(&runner, "plain").await;
        let sender = netns::run_in(&outside.0, || UdpSocket::bind("192.0.2.2:5555"))
            .await
            .expect("a thread")
            .expect("a socket");
        sender.send_to(b"?", "192.0.2.1:6000").expect("sent");
        let first = pod_with(&rig, &runner, "first", ports()).await;
        echo(&first, "first").await;
        assert_eq!(ask(&sender, "192.0.2.1:6000"), "first");
        rig.remove(&runner, &first).await;
        sender.send_to(b"?", "192.0.2.1:6000").ok();
        let second = pod_with(&rig, &runner, "second", ports()).await;
        echo(&second, "second").await;
        assert_eq!(ask(&sender, "192.0.2.1:6000"), "second");
        rig.remove(&runner, &second).await;
        rig.remove(&runner, &plain).await;
        outside.remove().await;
    });
}

#[test]
fn root_the_nodes_loopback_stays_closed_to_others() {
    in_scratch_namespace(|rig| async move {
        let outside = Outside::new(&rig).await;
        let runner = rig.runner();
        let pod = pod_with(&rig, &runner, "a", vec![mapping("tcp", None, 8080, 80)]).await;
        let routed = format!("/proc/sys/net/ipv4/conf/{BRIDGE}/route_localnet");
        assert_eq!(
            std::fs::read_to_string(&routed).expect("a setting").trim(),
            "1"
        );
        serve(address("127.0.0.1:9999"));
        assert!(
            connect(address("127.0.0.1:9999")).is_some(),
            "the node itself"
        );
        // A pod that may change its routes sends what is meant for the loopback over the bridge.
        pod.sh("ip addr del 127.0.0.1/8 dev lo; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet
                ip route add 127.0.0.1/32 via 10.123.0.1 dev eth0 src 10.123.0.2 2>/dev/null; ip rule add pref 0 table main; ip rule del pref 0 table local; true")
            .await;
        let quick = netns::run_in(&pod.attachment.netns, || {
            std::net::TcpStream::connect_timeout(
                &address("127.0.0.1:9999"),
                Duration::from_millis(500),
            )
            .is_ok()
        });
        assert!(!quick.await.expect("a thread"), "not from a pod");
        rig.remove(&runner, &pod).await;
        outside.remove().await;
    });
}

/// Answers every datagram to port 60 or 80 of the pod with this word.
async fn echo(pod: &Pod, word: &'static str) {
    netns::run_in(&pod.attachment.netns, move || {
        for port in [60u16, 80] {
            let socket = UdpSocket::bind(("0.0.0.0", port)).expect("the port is ours");
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .expect("a timeout");
            std::thread::spawn(move || {
                let mut buffer = [0; 16];
                while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(word.as_bytes(), from);
                }
            });
        }
    })
    .await
    .expect("a thread");
}

/// Sends datagrams until one is answered, for a few seconds at most.
fn ask(socket: &UdpSocket, target: &str) -> String {
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("a timeout");
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut buffer = [0; 16];
    while Instant::now() < deadline {
        let _ = socket.send_to(b"?", target);
        if let Ok((length, _)) = socket.recv_from(&mut buffer) {
            return String::from_utf8_lossy(&buffer[..length]).into_owned();
        }
    }
    "no answer".to_owned()
}
