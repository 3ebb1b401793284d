//! Laws of chains: built-in and executed plugins together, failures in the middle.

use std::time::Duration;

use hanok_cni::{Options, Runner, RunnerError, Source, netns};
use tokio_util::sync::CancellationToken;

use crate::rig::{BRIDGE, files, in_scratch_namespace, links, sh};

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// A conflist of our bridge with host-local, and what follows.
fn list(version: &str, rest: &str) -> String {
    format!(
        r#"{{"cniVersion":"{version}","name":"test","plugins":[
        {{"type":"bridge","bridge":"{BRIDGE}","isDefaultGateway":true,
          "ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.123.0.0/24"}}]]}}}}{rest}]}}"#
    )
}

#[test]
fn root_a_failure_in_the_middle_leaves_nothing() {
    in_scratch_namespace(|rig| async move {
        let seen = rig.path("seen");
        rig.plugin("fails", &format!(
            r#"cat >/dev/null; echo $CNI_COMMAND >>{}
            [ $CNI_COMMAND = ADD ] || exit 0
            echo '{{"cniVersion":"1.0.0","code":11,"msg":"try again later","details":"no luck"}}'; exit 1"#,
            seen.display()
        ));
        let runner = rig.runner_of(&list("1.0.0", r#",{"type":"fails"}"#));
        let attachment = rig.container("a").await;
        let error = runner.add(&attachment).await.unwrap_err();
        let text = error.chain();
        assert!(
            text.contains(r#"plugin type="fails" failed (ADD): try again later"#),
            "{text}"
        );
        assert_eq!(std::fs::read_to_string(&seen).unwrap(), "ADD\nDEL\n");
        rig.assert_links_are_gone();
        netns::remove(&attachment.netns).await.unwrap();
    });
}

#[test]
fn root_a_program_that_nobody_waits_for_is_killed_and_what_was_begun_undone() {
    let ipam = format!(
        r#"{{"cniVersion":"1.0.0","name":"test","plugins":[
        {{"type":"bridge","bridge":"{BRIDGE}","ipam":{{"type":"slow"}}}}]}}"#
    );
    for config in [list("1.0.0", r#",{"type":"slow"}"#), ipam] {
        in_scratch_namespace(|rig| async move {
            let seen = rig.path("seen");
            let file = seen.display();
            rig.plugin(
                "slow",
                &format!(
                    "cat >/dev/null; echo $CNI_COMMAND $$ >>{file}\n[ $CNI_COMMAND = DEL ] || exec sleep 60"
                ),
            );
            let runner = rig.runner_of(&config);
            let attachment = rig.container("a").await;
            let given_up = CancellationToken::new();
            let begun = async {
                let told = || std::fs::read_to_string(&seen).is_ok_and(|text| text.ends_with('\n'));
                until("begun", told).await;
                given_up.cancel();
            };
            let add = async { tokio::join!(runner.add_until(&attachment, &given_up), begun).0 };
            let added = tokio::time::timeout(PATIENCE, add).await;
            let error = added.expect("it does not wait").unwrap_err();
            assert!(matches!(&error, RunnerError::GivenUp(plugin) if plugin == "slow"));
            let seen = std::fs::read_to_string(&seen).unwrap();
            let calls: Vec<_> = seen.split_whitespace().collect();
            assert!(matches!(calls[..], ["ADD", _, "DEL", _]), "{calls:?}");
            let program = std::path::Path::new("/proc").join(calls[1]).join("exe");
            until("gone", || !program.exists()).await;
            rig.assert_links_are_gone();
            netns::remove(&attachment.netns).await.unwrap();
        });
    }
}

/// Waits for something that another process does.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("never {what}"));
}

#[test]
fn root_a_missing_program_is_named_and_leaves_nothing() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner_of(&list("1.1.0", r#",{"type":"no-such-plugin"}"#));
        let status = runner.status().await.unwrap_err().chain();
        assert!(
            status.contains(r#"no program "no-such-plugin" in "#),
            "{status}"
        );
        let attachment = rig.container("a").await;
        let error = runner.add(&attachment).await.unwrap_err();
        assert!(matches!(error, RunnerError::Exec { .. }), "{error:?}");
        rig.assert_links_are_gone();
        netns::remove(&attachment.netns).await.unwrap();
    });
}

#[test]
fn root_a_failed_undo_is_done_by_a_later_del() {
    in_scratch_namespace(|rig| async move {
        rig.plugin("fails", "cat >/dev/null; exit 1");
        let runner = rig.runner_of(&list("1.0.0", r#",{"type":"fails"}"#));
        let attachment = rig.container("a").await;
        runner.add(&attachment).await.unwrap_err();
        assert!(
            runner.del(&attachment).await.is_err(),
            "it is still known and still fails"
        );
        rig.plugin("fails", "cat >/dev/null; exit 0");
        // The network is another one by now; what was begun is undone all the same.
        let runner =
            rig.runner_of(r#"{"cniVersion":"1.0.0","name":"new","plugins":[{"type":"x"}]}"#);
        runner.del(&attachment).await.unwrap();
        netns::remove(&attachment.netns).await.unwrap();
    });
}

#[test]
fn root_a_del_that_hangs_is_killed_and_keeps_the_address_until_one_succeeds() {
    in_scratch_namespace(|rig| async move {
        let slow = |when: &str| {
            let result = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.123.0.2/30"}]}"#;
            let script =
                format!("cat >/dev/null; [ $CNI_COMMAND != {when} ] || sleep 600; echo '{result}'");
            rig.plugin("slow", &script);
        };
        slow("DEL");
        let dir = rig.path("net.d");
        std::fs::create_dir_all(&dir).unwrap();
        // One address for pods.
        let conflist = list("1.0.0", r#",{"type":"slow"}"#).replace("0.0/24", "0.0/30");
        std::fs::write(dir.join("10-test.conflist"), conflist).unwrap();
        let runner = Runner::new(Options {
            source: Source::Dir(dir),
            timeout: Duration::from_millis(500),
            ..rig.options.clone()
        });
        let (first, second) = (rig.container("a").await, rig.container("b").await);
        runner.add(&first).await.unwrap();
        for is_known in [true, true, false] {
            if !is_known {
                // What ADD has left cannot be read any more.
                for result in files(&rig.options.cache_dir) {
                    std::fs::write(rig.options.cache_dir.join(result), "{").unwrap();
                }
            }
            let del = tokio::time::timeout(PATIENCE, runner.del(&first)).await;
            let text = del.expect("it has an end").unwrap_err().chain();
            assert!(text.contains("no answer within 500ms, killed"), "{text}");
            let refused = runner.add(&second).await.unwrap_err().chain();
            assert!(refused.contains("no IP addresses available"), "{refused}");
        }
        slow("never");
        runner.del(&first).await.unwrap();
        runner.add(&second).await.unwrap();
        runner.del(&second).await.unwrap();
        for attachment in [first, second] {
            netns::remove(&attachment.netns).await.unwrap();
        }
    });
}

#[test]
fn root_executed_plugins_follow_built_in_ones() {
    in_scratch_namespace(|rig| async move {
        for version in ["0.3.1", "0.4.0", "1.0.0"] {
            let tuning = r#",{"type":"tuning","sysctl":{"net.core.somaxconn":"321"}}"#;
            let runner = rig.runner_of(&list(version, tuning));
            runner.status().await.unwrap();
            let pod = rig.pod(&runner, "a").await;
            assert_eq!(pod.sh("cat /proc/sys/net/core/somaxconn").await, "321\n");
            assert_eq!(pod.result.pod_ips().len(), 1);
            runner
                .check(&pod.attachment)
                .await
                .unwrap_or_else(|e| panic!("{}", e.chain()));
            rig.remove(&runner, &pod).await;
        }
    });
}

#[test]
fn root_debian_plugins_serve_a_whole_chain_and_the_other_way_round() {
    in_scratch_namespace(|rig| async move {
        let data = rig.path("debian");
        let config = format!(
            r#"{{"cniVersion":"1.0.0","name":"test","plugins":[
            {{"type":"bridge","bridge":"{BRIDGE}","isDefaultGateway":true,"ipam":{{"type":"host-local",
            "dataDir":"{}","ranges":[[{{"subnet":"10.123.0.0/24"}}]]}}}}]}}"#,
            data.display()
        );
        let theirs = rig.runner_with(&config, false);
        let a = rig.pod(&theirs, "a").await;
        assert!(a.result.interfaces[1].name.starts_with("veth"));
        let ours = rig.runner_with(&config, true);
        let b = rig.pod(&ours, "b").await;
        assert_ne!(a.ip(), b.ip(), "both read each other's leases");
        let target = std::net::SocketAddr::new(b.ip(), 80);
        b.serve(target).await;
        assert_eq!(a.reaches(target).await, Some(a.ip()));
        let leases = hanok_cni::ipam::list(&data.join("test")).unwrap();
        assert_eq!(leases.leases.len(), 2);
        assert_eq!(leases.foreign.len(), 0);
        // Each is undone by who has done it, whatever is preferred by now.
        rig.remove(&ours, &a).await;
        rig.remove(&theirs, &b).await;
        assert_eq!(
            hanok_cni::ipam::list(&data.join("test")).unwrap().leases,
            Vec::new()
        );
        rig.assert_links_are_gone();
    });
}

#[test]
fn root_our_bridge_takes_addresses_from_an_executed_ipam_plugin() {
    in_scratch_namespace(|rig| async move {
        let config = format!(
            r#"{{"cniVersion":"1.0.0","name":"test","plugins":[{{"type":"bridge","bridge":"{BRIDGE}",
            "isGateway":true,"ipam":{{"type":"static","addresses":[{{"address":"10.123.0.9/24","gateway":"10.123.0.1"}}],
            "routes":[{{"dst":"0.0.0.0/0"}}]}}}}]}}"#
        );
        let runner = rig.runner_of(&config);
        let pod = rig.pod(&runner, "a").await;
        assert_eq!(pod.ip().to_string(), "10.123.0.9");
        assert!(pod.sh("ip route").await.contains("default via 10.123.0.1"));
        rig.remove(&runner, &pod).await;
    });
}

#[test]
fn root_plugins_see_the_environment_and_the_capabilities() {
    in_scratch_namespace(|rig| async move {
        let (env, input) = (rig.path("env"), rig.path("input"));
        rig.plugin(
            "tells",
            &format!(
                r#"tee {} >/dev/null; env | grep ^CNI_ | grep -v PATH | sort >{}
            echo '{{"cniVersion":"1.0.0"}}'"#,
                input.display(),
                env.display()
            ),
        );
        let rest = r#",{"type":"tells","capabilities":{"portMappings":true}}"#;
        let runner = rig.runner_of(&list("1.0.0", rest));
        let mut attachment = rig.container("a").await;
        attachment.port_mappings.push(hanok_cni::PortMapping {
            protocol: "tcp".into(),
            container_port: 80,
            host_port: 8080,
            host_ip: None,
        });
        runner.add(&attachment).await.unwrap();
        let told = std::fs::read_to_string(&env).unwrap();
        for part in [
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID=a;K8S_POD_NAME=a;",
            "CNI_COMMAND=ADD",
            "CNI_CONTAINERID=a",
            "CNI_IFNAME=eth0",
            &format!("CNI_NETNS={}", attachment.netns.display()),
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let input: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&input).unwrap()).unwrap();
        assert_eq!(input["runtimeConfig"]["portMappings"][0]["hostPort"], 8080);
        assert_eq!(input["prevResult"]["ips"][0]["address"], "10.123.0.2/24");
        assert_eq!(input["name"], "test");
        runner.del(&attachment).await.unwrap();
        netns::remove(&attachment.netns).await.unwrap();
    });
}

impl crate::rig::Rig {
    /// No veth is left in the scratch namespace.
    fn assert_links_are_gone(&self) {
        let left: Vec<_> = links()
            .into_iter()
            .filter(|l| l.starts_with("veth"))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "{}", sh("ip link"));
    }
}
