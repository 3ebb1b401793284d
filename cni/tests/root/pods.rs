//! Laws of pods on the built-in network.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hanok_cni::{Options, Runner, RunnerError, Source, netns, remove_bridge};

use crate::rig::{BRIDGE, built_in, connect, in_scratch_namespace, links, serve, sh};

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

#[test]
fn root_two_pods_and_the_node_reach_each_other() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let (a, b) = (rig.pod(&runner, "a").await, rig.pod(&runner, "b").await);
        assert_eq!(a.ip().to_string(), "10.123.0.2");
        b.serve(at(b.ip(), 8080)).await;
        assert_eq!(
            a.reaches(at(b.ip(), 8080)).await,
            Some(a.ip()),
            "pod to pod"
        );
        let node: IpAddr = "10.123.0.1".parse().unwrap();
        assert_eq!(connect(at(b.ip(), 8080)), Some(node), "node to pod");
        serve(at(node, 8080));
        assert_eq!(a.reaches(at(node, 8080)).await, Some(a.ip()), "pod to node");
        a.serve("127.0.0.1:80".parse().unwrap()).await;
        assert!(
            a.reaches("127.0.0.1:80".parse().unwrap()).await.is_some(),
            "loopback"
        );
        a.serve("[::1]:80".parse().unwrap()).await;
        assert!(
            a.reaches("[::1]:80".parse().unwrap()).await.is_some(),
            "loopback, IPv6"
        );
        let route = a.sh("ip route").await;
        assert!(route.contains("default via 10.123.0.1 dev eth0"), "{route}");
        rig.remove(&runner, &a).await;
        rig.remove(&runner, &b).await;
    });
}

#[test]
fn root_pods_have_both_families_without_waiting() {
    in_scratch_namespace(|rig| async move {
        let source = Source::Fixed(built_in(&["10.123.0.0/24", "fd00:123::/64"]));
        let runner = Runner::new(Options {
            source,
            ..rig.options.clone()
        });
        let (a, b) = (rig.pod(&runner, "a").await, rig.pod(&runner, "b").await);
        let ips = b.result.pod_ips();
        assert_eq!(ips.len(), 2);
        assert_eq!(ips[1].to_string(), "fd00:123::3");
        b.serve(at(ips[1], 8080)).await;
        assert_eq!(
            a.reaches(at(ips[1], 8080)).await,
            Some(a.result.pod_ips()[1])
        );
        let route = a.sh("ip -6 route").await;
        assert!(
            route.contains("default via fd00:123::1 dev eth0"),
            "{route}"
        );
        assert!(!a.sh("ip -6 addr").await.contains("tentative"));
        rig.remove(&runner, &a).await;
        rig.remove(&runner, &b).await;
    });
}

#[test]
fn root_pods_without_ipv6_addresses_have_no_ipv6() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        let conf = "/proc/sys/net/ipv6/conf/eth0";
        assert_eq!(
            pod.sh(&format!("cat {conf}/disable_ipv6 {conf}/accept_ra"))
                .await,
            "1\n0\n"
        );
        assert_eq!(pod.sh("ip -6 addr show dev eth0").await, "");
        rig.remove(&runner, &pod).await;
    });
}

#[test]
fn root_a_pod_keeps_the_mtu_and_can_reach_itself() {
    in_scratch_namespace(|rig| async move {
        let list = format!(
            r#"{{"cniVersion":"1.1.0","name":"test","plugins":[{{"type":"bridge","bridge":"{BRIDGE}",
            "isDefaultGateway":true,"hairpinMode":true,"mtu":1400,
            "ipam":{{"type":"host-local","subnet":"10.123.0.0/24"}}}}]}}"#
        );
        let runner = rig.runner_of(&list);
        let pod = rig.pod(&runner, "a").await;
        assert!(pod.sh("ip link show eth0").await.contains("mtu 1400"));
        assert!(pod.sh("ip route").await.contains("default via 10.123.0.1"));
        let port = links().into_iter().find(|l| l.starts_with("veth")).unwrap();
        assert!(sh(&format!("bridge -d link show dev {port}")).contains("hairpin on"));
        rig.remove(&runner, &pod).await;
    });
}

#[test]
fn root_fifty_pods_at_once_have_fifty_addresses() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let (rig, runner) = (Arc::clone(&rig), runner.clone());
                tokio::spawn(async move { rig.pod(&runner, &format!("pod{n}")).await })
            })
            .collect();
        let mut pods = Vec::new();
        for task in tasks {
            pods.push(task.await.unwrap());
        }
        let mut addresses: Vec<_> = pods.iter().map(|pod| pod.ip()).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 50);
        let tasks: Vec<_> = pods
            .into_iter()
            .map(|pod| {
                let (rig, runner) = (Arc::clone(&rig), runner.clone());
                tokio::spawn(async move { rig.remove(&runner, &pod).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn root_del_succeeds_twice_and_without_anything_to_delete() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        runner.del(&pod.attachment).await.unwrap();
        runner.del(&pod.attachment).await.unwrap();
        netns::remove(&pod.attachment.netns).await.unwrap();
        runner.del(&pod.attachment).await.unwrap();
        let never = hanok_cni::Attachment::new("never", "/run/netns/hanok-cni-never");
        runner.del(&never).await.unwrap();
    });
}

#[test]
fn root_del_frees_the_address_when_the_namespace_is_gone() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        netns::remove(&pod.attachment.netns).await.unwrap();
        runner.del(&pod.attachment).await.unwrap();
        assert_eq!(runner.leases("test").unwrap().leases, Vec::new());
    });
}

#[test]
fn root_del_frees_the_address_when_the_result_is_lost_too() {
    in_scratch_namespace(|rig| async move {
        let pod = rig.pod(&rig.runner(), "a").await;
        std::fs::remove_dir_all(&rig.options.cache_dir).unwrap();
        netns::remove(&pod.attachment.netns).await.unwrap();
        let source = Source::Dir(rig.path("no-such-directory"));
        let runner = Runner::new(Options {
            source,
            ..rig.options.clone()
        });
        runner.del(&pod.attachment).await.unwrap();
        assert_eq!(runner.leases("test").unwrap().leases, Vec::new());
    });
}

#[test]
fn root_del_of_what_was_never_attached_succeeds_while_the_configuration_is_broken() {
    in_scratch_namespace(|rig| async move {
        let runner =
            rig.runner_of(r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": 7}]}"#);
        let pod = hanok_cni::Attachment::new("never", "/run/netns/hanok-cni-never");
        runner.add(&pod).await.unwrap_err();
        runner.del(&pod).await.unwrap();
    });
}

#[test]
fn root_a_container_is_attached_once() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        let again = runner.add(&pod.attachment).await;
        assert!(
            matches!(again, Err(RunnerError::Exists { .. })),
            "{again:?}"
        );
        assert!(runner.cached("a", "eth0").is_some());
        runner.check(&pod.attachment).await.unwrap();
        rig.remove(&runner, &pod).await;
    });
}

#[test]
fn root_check_tells_when_an_address_is_gone() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        pod.sh("ip addr flush dev eth0").await;
        let error = runner.check(&pod.attachment).await.unwrap_err().chain();
        assert!(error.contains("lacks address 10.123.0.2/24"), "{error}");
        rig.remove(&runner, &pod).await;
    });
}

#[test]
fn root_a_caller_that_gave_up_leaves_an_attachment_that_del_removes() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let attachment = rig.container("a").await;
        {
            let add = runner.add(&attachment);
            let mut add = std::pin::pin!(add);
            // The first poll starts the task; after that nobody waits for it.
            let _ = futures_poll_once(add.as_mut()).await;
        }
        runner.del(&attachment).await.unwrap();
        netns::remove(&attachment.netns).await.unwrap();
    });
}

async fn futures_poll_once<F: Future + Unpin>(future: F) -> bool {
    let mut future = future;
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut future).poll(cx).is_ready())
    })
    .await
}

#[test]
fn root_a_removed_bridge_leaves_nothing() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        rig.remove(&runner, &pod).await;
        assert!(links().contains(&BRIDGE.to_owned()));
        remove_bridge(BRIDGE).await.unwrap();
        remove_bridge(BRIDGE).await.unwrap();
        assert!(!links().contains(&BRIDGE.to_owned()));
        assert_eq!(sh("nft list ruleset"), "");
    });
}
