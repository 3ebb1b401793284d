//! Laws of masquerade: what `nft` shows, and what the outside sees.

use hanok_cni::masquerade::{Masquerade, ensure_masquerade, remove_masquerade};
use hanok_cni::netns;

use crate::rig::{connect, in_scratch_namespace, serve, sh};

fn wanted() -> Masquerade {
    Masquerade {
        table: "hanok-test".into(),
        pod_cidrs: vec![
            "10.1.0.0/24".parse().expect("a CIDR"),
            "fd00:1::/64".parse().expect("a CIDR"),
        ],
        non_masquerade_cidrs: vec!["10.0.0.0/12".parse().expect("a CIDR")],
    }
}

const LISTED: &str = "table inet hanok-test {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 10.1.0.0/24 ip daddr != 10.0.0.0/12 ip daddr != 10.1.0.0/24 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip6 saddr fd00:1::/64 ip6 daddr != fd00:1::/64 ip6 daddr != ff00::/8 masquerade fully-random
	}
}
";

/// The rules as `nft` prints them, without our comments.
fn listed() -> String {
    let text = sh("nft list ruleset");
    let lines = text
        .lines()
        .map(|line| line.split(" comment ").next().unwrap_or(line));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn root_nft_reads_our_rules_as_we_mean_them() {
    in_scratch_namespace(|_| async {
        ensure_masquerade(&wanted()).await.unwrap();
        assert_eq!(listed(), LISTED);
        remove_masquerade("hanok-test").await.unwrap();
        assert_eq!(listed(), "");
        remove_masquerade("hanok-test").await.unwrap();
    });
}

#[test]
fn root_a_table_that_is_right_is_left_alone_and_a_wrong_one_replaced() {
    in_scratch_namespace(|_| async {
        let handles = || sh("nft -a list ruleset");
        ensure_masquerade(&wanted()).await.unwrap();
        let before = handles();
        ensure_masquerade(&wanted()).await.unwrap();
        assert_eq!(handles(), before, "nothing was written");
        sh("nft flush table inet hanok-test");
        ensure_masquerade(&wanted()).await.unwrap();
        assert_eq!(listed(), LISTED, "flushed rules come back");
        sh("nft add rule inet hanok-test postrouting drop");
        ensure_masquerade(&wanted()).await.unwrap();
        assert_eq!(listed(), LISTED, "strangers' rules in our table go");
        sh("nft add table ip other");
        remove_masquerade("hanok-test").await.unwrap();
        assert_eq!(
            sh("nft list ruleset"),
            "table ip other {\n}\n",
            "other tables stay"
        );
    });
}

#[test]
fn root_the_outside_sees_the_node_and_pods_see_pods() {
    in_scratch_namespace(|rig| async move {
        let outside = netns::new_path(&rig.pins()).unwrap();
        netns::create(&outside).await.unwrap();
        sh(&format!(
            "ip link add up0 type veth peer name up1 && ip addr add 192.0.2.1/24 dev up0 && ip link set up0 up
             ip link set up1 netns {}",
            outside.file_name().map(|_| outside.display().to_string()).unwrap()
        ));
        netns::run_in(&outside, || {
            sh("ip addr add 192.0.2.2/24 dev up1; ip link set up1 up; ip route add default via 192.0.2.1");
            serve("192.0.2.2:80".parse().unwrap());
        })
        .await
        .unwrap();
        let runner = rig.runner();
        let pod = rig.pod(&runner, "a").await;
        let seen = pod.reaches("192.0.2.2:80".parse().unwrap()).await;
        assert_eq!(
            seen,
            Some("192.0.2.1".parse().unwrap()),
            "the node's address"
        );
        pod.serve("10.123.0.2:80".parse().unwrap()).await;
        let target = "10.123.0.2:80".parse().unwrap();
        let seen = netns::run_in(&outside, move || connect(target))
            .await
            .unwrap();
        assert_eq!(
            seen,
            Some("192.0.2.2".parse().unwrap()),
            "incoming addresses are kept"
        );
        rig.remove(&runner, &pod).await;
        sh("ip link del up0");
        netns::remove(&outside).await.unwrap();
    });
}
