//! One law per test: what policies and rules say.

use super::*;
use crate::pod::sample;

#[test]
fn restart_follows_policy_exit_and_kind() {
    use ContainerKind::{App, Ephemeral, Init, Sidecar};
    let ok = Exit {
        code: 0,
        reason: "Completed".into(),
    };
    let bad = Exit {
        code: 3,
        reason: "Error".into(),
    };
    let oom = Exit {
        code: 0,
        reason: "OOMKilled".into(),
    };
    let table = [
        ("Always", App, &ok, true),
        ("Always", App, &bad, true),
        ("OnFailure", App, &ok, false),
        ("OnFailure", App, &bad, true),
        ("Never", App, &bad, false),
        ("", App, &ok, true),
        ("OnFailure", Init, &bad, true),
        ("OnFailure", Init, &oom, true),
        ("Always", Init, &ok, false),
        ("Always", Init, &bad, true),
        ("Always", Init, &oom, true),
        ("Never", Init, &bad, false),
        ("Never", Sidecar, &ok, true),
        ("Always", Ephemeral, &bad, false),
    ];
    for (policy, kind, exit, want) in table {
        let pod = sample::pod(policy, &[], &["c"]);
        let container = &app_containers(&pod)[0];
        assert_eq!(
            should_restart(&pod, kind, container, exit),
            want,
            "{policy} {kind:?} {exit:?}"
        );
    }
}

#[test]
fn a_rule_restarts_despite_the_policy() {
    let pod = sample::from(serde_json::json!({
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}],
    }));
    let container = &app_containers(&pod)[0];
    let exit = |code| Exit {
        code,
        reason: "Error".into(),
    };
    assert!(should_restart(
        &pod,
        ContainerKind::App,
        container,
        &exit(42)
    ));
    assert!(!should_restart(
        &pod,
        ContainerKind::App,
        container,
        &exit(1)
    ));
}

#[test]
fn the_first_rule_that_holds_decides() {
    let pod = sample::from(
        serde_json::json!({"containers": [{"name": "c", "image": "i",
        "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Later", "exitCodes": {"operator": "In", "values": [1]}},
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 2]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 3]}}]}]}),
    );
    let container = &app_containers(&pod)[0];
    let table = [
        (0, None),
        (1, None),
        (2, Some(RuleAction::Restart)),
        (3, None),
        (4, Some(RuleAction::RestartAll)),
    ];
    for (code, want) in table {
        assert_eq!(rule(container, code), want, "{code}");
    }
    assert!(may_restart_all(&pod));
    assert!(!may_restart_all(&sample::pod("Always", &["i"], &["a"])));
}

#[test]
fn a_containers_own_policy_beats_the_pods() {
    let pod = sample::from(serde_json::json!({
        "restartPolicy": "Always",
        "containers": [{"name": "c", "image": "i", "restartPolicy": "Never"}],
    }));
    let exit = Exit {
        code: 1,
        reason: "Error".into(),
    };
    assert!(!should_restart(
        &pod,
        ContainerKind::App,
        &app_containers(&pod)[0],
        &exit
    ));
}
