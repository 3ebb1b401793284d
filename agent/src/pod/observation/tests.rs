//! One law per test: what records and the last status tell together.

use super::*;
use crate::pod::sample;

#[test]
fn a_container_only_the_status_knows_counts_as_ended() {
    let last: PodStatus = serde_json::from_value(serde_json::json!({"containerStatuses": [
        {"name": "ran", "ready": true, "restartCount": 2, "image": "", "imageID": "",
         "state": {"running": {}}},
        {"name": "done", "ready": false, "restartCount": 0, "image": "", "imageID": "",
         "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
        {"name": "never", "ready": false, "restartCount": 0, "image": "", "imageID": "",
         "state": {"waiting": {"reason": "ContainerCreating"}}},
    ]}))
    .expect("a status");
    let seen = Observation::new(PodView::default(), Some(&last));
    assert_eq!(
        seen.last_exit("ran").map(|exit| exit.code),
        Some(LOST_EXIT_CODE)
    );
    assert_eq!(seen.next_attempt("ran"), 3);
    assert_eq!(seen.last_exit("done").map(|exit| exit.code), Some(0));
    assert_eq!(seen.last_exit("never"), None);
    assert_eq!(seen.next_attempt("never"), 0);
}

#[test]
fn a_record_tells_the_end_and_the_status_of_a_later_run_the_count() {
    let pod = sample::pod("Always", &[], &["c"]);
    let last: PodStatus = serde_json::from_value(serde_json::json!({"containerStatuses": [
        {"name": "c", "ready": true, "restartCount": 7, "image": "", "imageID": "",
         "state": {"running": {}}}]}))
    .expect("a status");
    let seen = Observation::new(
        sample::view(vec![sample::exited(&pod, "c", 1, 4, 9)]),
        Some(&last),
    );
    assert_eq!(seen.last_exit("c").map(|exit| exit.code), Some(4));
    assert_eq!(seen.next_attempt("c"), 8);
    let seen = Observation::new(
        sample::view(vec![sample::exited(&pod, "c", 7, 4, 9)]),
        Some(&last),
    );
    assert_eq!(seen.next_attempt("c"), 8);
}

#[test]
fn what_was_made_and_never_ran_has_the_number_of_the_next_run() {
    let pod = sample::pod("Always", &[], &["c"]);
    for (made, shown, next) in [
        (6, "hanok://lost", 8),
        (7, "hanok://lost", 8),
        (8, "hanok://lost", 8),
        (7, "hanok://c.7", 7),
    ] {
        let last: PodStatus = serde_json::from_value(serde_json::json!({"containerStatuses": [
            {"name": "c", "ready": true, "restartCount": 7, "image": "", "imageID": "",
             "containerID": shown, "state": {"running": {}}}]}))
        .expect("a status");
        let made = sample::record(&pod, "c", made, ContainerState::Created);
        let seen = Observation::new(sample::view(vec![made]), Some(&last));
        assert_eq!(seen.next_attempt("c"), next, "{shown}");
    }
}

#[test]
fn a_lost_run_tells_of_the_sandbox_that_it_was_in() {
    let sandbox = sample::view(Vec::new());
    let time = |seconds: i64| {
        let created = timestamp(sandbox.sandboxes[0].created_at);
        let time = created.as_second() + seconds;
        Timestamp::from_second(time).expect("a time").to_string()
    };
    let waits = |last: serde_json::Value| {
        serde_json::json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}},
                           "lastState": {"terminated": last}})
    };
    for (case, mut status, expected) in [
        (
            "runs since before",
            serde_json::json!({"state": {"running": {"startedAt": time(-5)}}}),
            false,
        ),
        (
            "runs since the first second",
            serde_json::json!({"state": {"running": {"startedAt": time(0)}}}),
            false,
        ),
        (
            "runs",
            serde_json::json!({"state": {"running": {"startedAt": time(1)}}}),
            true,
        ),
        (
            "ended after the first second",
            waits(serde_json::json!({"exitCode": 1, "startedAt": time(0), "finishedAt": time(3)})),
            true,
        ),
        (
            "could not be started",
            waits(serde_json::json!({"exitCode": 128, "finishedAt": time(3)})),
            true,
        ),
        (
            "ended before",
            waits(
                serde_json::json!({"exitCode": 1, "startedAt": time(-9), "finishedAt": time(-3)}),
            ),
            false,
        ),
        (
            "ended nobody knows when",
            waits(serde_json::json!({"exitCode": 255})),
            false,
        ),
        (
            "was taken away with all others",
            waits(
                serde_json::json!({"exitCode": 137, "reason": RESTARTING_ALL, "finishedAt": time(3)}),
            ),
            false,
        ),
    ] {
        for (field, value) in [
            ("name", serde_json::json!("c")),
            ("ready", serde_json::json!(false)),
            ("restartCount", serde_json::json!(1)),
            ("image", serde_json::json!("")),
            ("imageID", serde_json::json!("")),
        ] {
            status[field] = value;
        }
        let last = serde_json::json!({"containerStatuses": [status]});
        let last: PodStatus = serde_json::from_value(last).expect("a status");
        let pod = sample::pod("Always", &[], &["c"]);
        let mut older = sample::exited(&pod, "c", 0, 1, 999);
        older.sandbox = hanok_runtime::api::SandboxId("older".to_owned());
        for records in [Vec::new(), vec![older]] {
            let case = format!("{case}, beside {records:?}");
            let seen = Observation::new(sample::view(records), Some(&last));
            assert_eq!(seen.ran_in_newest_sandbox("c"), expected, "{case}");
        }
    }
}
