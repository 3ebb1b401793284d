//! Whether what the server has is what the node has told.

use super::*;
#[test]
fn what_the_server_has_is_compared_but_for_what_is_others() {
    let containers = |last: Option<Value>| {
        let mut a =
            json!({"name": "a", "image": "i:1", "imageID": "", "ready": true, "restartCount": 0});
        if let Some(last) = last {
            a["lastState"] = last;
        }
        json!([a])
    };
    let own = json!({"phase": "Running", "startTime": "2027-01-15T08:00:00.5Z",
        "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": containers(None)});
    let with = |field: &str, value: Value| {
        let mut theirs = own.clone();
        theirs[field] = value;
        theirs
    };
    let gate = json!([{"type": "example.com/gate", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]);
    for (theirs, want) in [
        (own.clone(), true),
        (with("startTime", json!("2027-01-15T08:00:00Z")), true),
        (with("conditions", gate), true),
        (with("nominatedNodeName", json!("n")), false),
        (with("resourceClaimStatuses", json!([{"name": "r"}])), true),
        (with("phase", json!("Pending")), false),
        (with("podIP", json!("10.0.0.1")), false),
        (with("conditions", json!([])), false),
        (with("containerStatuses", containers(Some(json!({})))), true),
        (
            with(
                "containerStatuses",
                containers(Some(json!({"terminated": {"exitCode": 1}}))),
            ),
            false,
        ),
        (
            with("conditions", json!([{"type": "Ready", "status": "False"}])),
            false,
        ),
    ] {
        let told = is_told(&parse(theirs.clone()), &parse(own.clone()));
        assert_eq!(told, want, "{theirs}");
    }
}
