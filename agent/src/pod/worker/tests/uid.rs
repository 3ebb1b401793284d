//! Names and UIDs that come again: what was is entirely gone before what is to be starts.

use super::*;

/// The sample pod, as a file would have made it.
fn static_pod() -> Pod {
    let mut pod = sample::pod("Always", &[], &["a"]);
    let source = [("kubernetes.io/config.source".to_owned(), "file".to_owned())];
    pod.metadata.annotations = Some(source.into());
    pod
}

fn with_uid(mut pod: Pod, uid: &str) -> Pod {
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

/// The pod has started, ended and started again, never two at once.
fn assert_one_after_the_other(state: &State) {
    let order: Vec<String> = calls(state, &["run", "remove", "terminated"])
        .iter()
        .filter_map(|call| call.split(' ').next().map(str::to_owned))
        .collect();
    assert_eq!(order, ["run", "remove", "terminated", "run"]);
}

async fn until_the_new_one_runs(node: &Node) {
    node.until("the new one runs", |state| {
        calls(state, &["run"]).len() == 2
    })
    .await;
}

async fn second_runs_alone(node: &Node) {
    until_the_new_one_runs(node).await;
    let state = node.fake.state();
    assert_eq!(state.sandboxes.len(), 1);
    assert_eq!(state.sandboxes[0].config.uid.as_str(), "second");
}

#[tokio::test(start_paused = true)]
async fn a_changed_static_pod_waits_for_the_end_of_the_old_one_within_its_grace() {
    let node = Node::start(&Fake::new());
    let old = static_pod();
    node.fake.state().deaf.insert("a".into());
    node.apply(&old).await;
    node.until("ready", is_ready).await;
    let began = Instant::now();
    node.send(PodUpdate::Gone(uid())).await;
    node.apply(&with_uid(old.clone(), "second")).await;
    // Another edit while the first one ends: only the newest form runs.
    sleep(Duration::from_secs(2)).await;
    node.send(PodUpdate::Gone(PodUid("second".into()))).await;
    node.apply(&with_uid(old, "third")).await;
    until_the_new_one_runs(&node).await;
    assert_eq!(began.elapsed().as_secs(), 30);
    let state = node.fake.state();
    assert_eq!(calls(&state, &["stop a"]), ["stop a 30s"]);
    assert_one_after_the_other(&state);
    assert_eq!(state.sandboxes[0].config.uid.as_str(), "third");
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_put_back_while_its_pod_ends_runs_again() {
    let node = Node::start(&Fake::new());
    node.fake.state().deaf.insert("a".into());
    node.apply(&static_pod()).await;
    node.until("ready", is_ready).await;
    node.send(PodUpdate::Gone(uid())).await;
    sleep(Duration::from_secs(1)).await;
    node.apply(&static_pod()).await;
    node.until("it runs again", |state| calls(state, &["run"]).len() == 2)
        .await;
    assert_one_after_the_other(&node.fake.state());
    // And once removed, it does not come back by itself.
    node.send(PodUpdate::Gone(uid())).await;
    node.until("gone", |state| state.terminated == 2).await;
    sleep(Duration::from_secs(100)).await;
    assert_nothing_left(&node.fake.state());
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_again_after_a_forced_deletion_waits_for_the_old_one() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.fake.state().deaf.insert("a".into());
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&with_uid(pod, "second")).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(calls(&node.fake.state(), &["run"]).len(), 1);
    let began = Instant::now();
    node.send(PodUpdate::Gone(uid())).await;
    until_the_new_one_runs(&node).await;
    assert!(began.elapsed() <= Duration::from_secs(3));
    assert_one_after_the_other(&node.fake.state());
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_agent_ran_of_the_name_goes_first() {
    // Even when the new agent cannot see at first what there is.
    for failing_lists in [0, 3] {
        let fake = Fake::new();
        let node = Node::start(&fake);
        node.apply(&static_pod()).await;
        node.until("ready", is_ready).await;
        node.kill().await;
        fake.state().failing_lists = failing_lists;
        // The manifest has changed while there was no agent, and there is no API server.
        let node = Node::start(&fake);
        node.apply(&with_uid(static_pod(), "second")).await;
        second_runs_alone(&node).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_agent_ran_is_not_forgotten_by_a_look_that_fails() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    fake.state().deaf.insert("a".into());
    node.apply(&static_pod()).await;
    node.until("ready", is_ready).await;
    node.kill().await;
    let node = Node::start(&fake);
    sleep(Duration::from_millis(10)).await;
    fake.state().failing_lists = 1;
    node.send(PodUpdate::Synced).await;
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fake.state().failing_lists, 0);
    node.apply(&with_uid(static_pod(), "second")).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(calls(&fake.state(), &["run"]).len(), 1);
    second_runs_alone(&node).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_and_is_taken_back_never_starts() {
    let node = Node::start(&Fake::new());
    node.fake.state().deaf.insert("a".into());
    node.apply(&static_pod()).await;
    node.until("ready", is_ready).await;
    node.send(PodUpdate::Gone(uid())).await;
    node.apply(&with_uid(static_pod(), "second")).await;
    node.send(PodUpdate::Gone(PodUid("second".into()))).await;
    node.until("gone", |state| state.terminated == 1).await;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(calls(&node.fake.state(), &["run"]).len(), 1);
    assert_nothing_left(&node.fake.state());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_gets_no_new_sandbox_though_nobody_can_look() {
    let node = Node::start(&Fake::new());
    let mut pod = sample::pod("Always", &[], &["a"]);
    pod.spec
        .as_mut()
        .expect("a spec")
        .termination_grace_period_seconds = Some(5);
    node.fake.state().deaf.insert("a".into());
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.fake.break_sandbox();
    node.until("its container is being stopped", |state| {
        !calls(state, &["stop a"]).is_empty()
    })
    .await;
    node.fake.state().failing_lists = 1;
    node.send(PodUpdate::Gone(uid())).await;
    node.until("gone", |state| state.terminated == 1).await;
    assert_eq!(calls(&node.fake.state(), &["run"]).len(), 1);
    assert_nothing_left(&node.fake.state());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_stuck_in_its_first_look_is_not_well_and_one_that_looks_again_is() {
    for (hanging_lists, failing_lists, is_well) in [(true, 0, false), (false, u32::MAX, true)] {
        let fake = Fake::new();
        fake.state().hanging_lists = hanging_lists;
        fake.state().failing_lists = failing_lists;
        let node = Node::start(&fake);
        sleep(Duration::from_secs(100)).await;
        assert_eq!(node.pods.health(), Ok(()));
        sleep(Duration::from_secs(100)).await;
        assert_eq!(node.pods.health().is_ok(), is_well);
    }
}
