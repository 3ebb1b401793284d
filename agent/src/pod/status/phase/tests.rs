//! The table of phases.

use super::*;
use crate::pod::sample;
use serde_json::{Value, json};

/// A container with its state: `name[:sidecar|:Never|:OnFailure|:Always|:all] STATE`. With `all`, exit code 42 restarts all
/// containers. The state is `-` for one that has never run, `runs`, `started`, an exit code, or `after CODE` for one that
/// waits for its next run; `after all` when all are restarted.
type Written = &'static [&'static str];

fn container(written: &str) -> (Value, ContainerStatus) {
    let (name, state) = written.split_once(' ').expect("a state");
    let (name, policy) = name.split_once(':').unwrap_or((name, ""));
    let mut spec = json!({"name": name, "image": "i:1"});
    match policy {
        "" => {}
        "sidecar" => spec["restartPolicy"] = json!("Always"),
        "all" => {
            spec["restartPolicy"] = json!("Never");
            spec["restartPolicyRules"] = json!([{"action": "RestartAllContainers",
                "exitCodes": {"operator": "In", "values": [42]}}]);
        }
        policy => spec["restartPolicy"] = json!(policy),
    }
    let ended = |code: &str| match code {
        "all" => json!({"terminated": {"exitCode": 137, "reason": spec::RESTARTING_ALL}}),
        code => json!({"terminated": {"exitCode": code.parse::<i32>().expect("a code")}}),
    };
    let (state, last) = match state {
        "-" => (json!({"waiting": {}}), json!(null)),
        "runs" | "started" => (json!({"running": {}}), json!(null)),
        state => match state.strip_prefix("after ") {
            Some(code) => (json!({"waiting": {}}), ended(code)),
            None => (ended(state), json!(null)),
        },
    };
    let ready = state["terminated"]["exitCode"] == 0;
    let started = written.ends_with("started");
    let status = json!({"name": name, "image": "", "imageID": "", "restartCount": 0, "ready": ready,
        "started": started, "state": state, "lastState": last});
    (spec, serde_json::from_value(status).expect("a status"))
}

fn phase_of(
    policy: &str,
    init: Written,
    app: Written,
    ends: bool,
    has_begun: bool,
) -> &'static str {
    let both =
        |list: Written| -> (Vec<_>, Vec<_>) { list.iter().map(|one| container(one)).unzip() };
    let ((init_specs, init), (app_specs, app)) = (both(init), both(app));
    let pod = sample::from(json!({
        "restartPolicy": policy, "initContainers": init_specs, "containers": app_specs,
    }));
    by_containers(&Containers {
        pod: &pod,
        init: &init,
        app: &app,
        ends,
        has_begun,
    })
}

#[test]
fn containers_add_up_to_a_phase() {
    let table: &[(&str, Written, &str)] = &[
        ("Always", &["a -", "b -"], "Pending"),
        ("Always", &["a runs", "b runs"], "Running"),
        ("Always", &["a 1", "b 1"], "Running"),
        ("Always", &["a runs", "b 1"], "Running"),
        ("Always", &["a runs", "b -"], "Pending"),
        ("Always", &["a runs", "b after 1"], "Running"),
        ("Never", &["a runs", "b runs"], "Running"),
        ("Never", &["a 0", "b 0"], "Succeeded"),
        ("Never", &["a 1", "b 1"], "Failed"),
        ("Never", &["a 0", "b 1"], "Failed"),
        ("Never", &["a runs", "b 0"], "Running"),
        ("Never", &["a runs", "b -"], "Pending"),
        ("OnFailure", &["a 0", "b 0"], "Succeeded"),
        ("OnFailure", &["a 1", "b 1"], "Running"),
        ("OnFailure", &["a runs", "b 0"], "Running"),
        ("OnFailure", &["a runs", "b -"], "Pending"),
        ("OnFailure", &["a runs", "b after 0"], "Running"),
        // A container's own policy goes before the pod's.
        ("Always", &["a:Never 1"], "Failed"),
        ("Always", &["a:OnFailure 1"], "Running"),
        ("Always", &["a:Always 1"], "Running"),
        ("Never", &["a:Always 0", "b 1"], "Running"),
        ("Always", &["a:Never 1", "b:OnFailure 0"], "Failed"),
        ("Always", &["a:Never 0", "b:OnFailure 0"], "Succeeded"),
        // All containers are restarted.
        ("Never", &["a:all 42"], "Running"),
        ("Never", &["a:all 41"], "Failed"),
        ("Never", &["a:all after all"], "Running"),
    ];
    for (policy, app, want) in table {
        let phase = phase_of(policy, &[], app, false, true);
        assert_eq!(phase, *want, "{policy} {app:?}");
    }
}

#[test]
fn a_pod_that_ends_is_judged_by_exit_codes_whatever_its_policy() {
    let table: &[(Written, Written, &str)] = &[
        (&[], &["a 0", "b 0"], "Succeeded"),
        (&[], &["a 0", "b 1"], "Failed"),
        (&[], &["a runs", "b 1"], "Running"),
        (&["s:sidecar 1"], &["a 0", "b 0"], "Succeeded"),
        (&["s:sidecar 0"], &["a 0", "b 0"], "Succeeded"),
        (&["s:sidecar -"], &["a 0", "b 0"], "Succeeded"),
    ];
    for (init, app, want) in table {
        assert_eq!(
            phase_of("Always", init, app, true, true),
            *want,
            "{init:?} {app:?}"
        );
    }
}

#[test]
fn a_pod_is_pending_until_its_init_containers_are_done_or_have_failed_for_good() {
    let fresh: Written = &["a -", "b -"];
    let table: &[(&str, Written, Written, &str)] = &[
        ("Always", &["x -"], fresh, "Pending"),
        ("Always", &["x runs"], fresh, "Pending"),
        ("Always", &["x 1"], fresh, "Pending"),
        ("Always", &["x after 0"], fresh, "Pending"),
        ("Always", &["x after 1"], fresh, "Pending"),
        ("Always", &["x 0"], &["a runs", "b runs"], "Running"),
        ("Never", &["x runs"], fresh, "Pending"),
        ("Never", &["x 1"], fresh, "Failed"),
        ("Never", &["x after 0"], fresh, "Pending"),
        ("Never", &["x after 1"], fresh, "Failed"),
        ("Never", &["x 0"], &["a runs", "b runs"], "Running"),
        ("Always", &["x:Never 1"], fresh, "Failed"),
        ("Never", &["x:OnFailure 1"], fresh, "Pending"),
        ("Never", &["x:all 42"], fresh, "Pending"),
        ("Never", &["x:all after all"], fresh, "Pending"),
        ("Never", &["x:all 0"], fresh, "Pending"),
        ("Never", &["x 0"], &["a:all after all"], "Running"),
        ("Never", &["x 1"], &["a:all after all"], "Failed"),
        // They run again, in a new sandbox or because all containers are restarted.
        ("Always", &["x runs"], &["a 1"], "Pending"),
        ("Always", &["x runs"], &["a runs"], "Pending"),
        ("Never", &["x runs"], &["a:all after all"], "Pending"),
        ("Always", &["x after 1"], &["a after 1"], "Running"),
    ];
    for (policy, init, app, want) in table {
        let phase = phase_of(policy, init, app, false, false);
        assert_eq!(phase, *want, "{policy} {init:?} {app:?}");
    }
}

#[test]
fn sidecars_count_until_they_have_started_and_while_they_run() {
    let fresh: Written = &["a -", "b -"];
    let done: Written = &["a 0", "b 0"];
    let run: Written = &["a runs", "b runs"];
    let table: &[(&str, Written, Written, bool, &str)] = &[
        ("Always", &["s:sidecar runs"], fresh, false, "Pending"),
        ("Always", &["s:sidecar 1"], fresh, false, "Pending"),
        ("Always", &["s:sidecar after 0"], fresh, false, "Pending"),
        (
            "Always",
            &["s:sidecar started"],
            &["a runs", "b -"],
            true,
            "Pending",
        ),
        ("Always", &["s:sidecar started"], run, true, "Running"),
        ("Always", &["s:sidecar runs"], run, true, "Running"),
        ("Always", &["s:sidecar 1"], run, true, "Running"),
        ("Always", &["s:sidecar after 0"], run, true, "Running"),
        ("Always", &["s:sidecar -"], run, true, "Pending"),
        ("Never", &["s:sidecar started"], done, true, "Running"),
        ("Never", &["s:sidecar runs"], done, true, "Running"),
        ("Never", &["s:sidecar 0"], done, true, "Succeeded"),
        ("Never", &["s:sidecar 1"], done, true, "Succeeded"),
        ("Never", &["s:sidecar after 0"], done, true, "Succeeded"),
        ("Never", &["s:sidecar after 1"], done, true, "Succeeded"),
        // In a new sandbox the pod begins anew.
        ("Always", &["s:sidecar runs"], run, false, "Pending"),
        (
            "Always",
            &["x 0", "s:sidecar runs"],
            &["a 1"],
            false,
            "Pending",
        ),
        (
            "Always",
            &["x 0", "s:sidecar runs"],
            &["a 1"],
            true,
            "Running",
        ),
        (
            "Always",
            &["x 0", "s:sidecar started"],
            &["a 1"],
            false,
            "Running",
        ),
        (
            "Never",
            &["s:sidecar after all"],
            &["a after all"],
            true,
            "Running",
        ),
        (
            "Never",
            &["s:sidecar runs", "x after all"],
            &["a -"],
            true,
            "Pending",
        ),
    ];
    for (policy, init, app, has_begun, want) in table {
        let phase = phase_of(policy, init, app, false, *has_begun);
        assert_eq!(phase, *want, "{policy} {init:?} {app:?} {has_begun}");
    }
}
