//! Somebody sets the machine's clock, by an hour, while something of a pod waits: it waits no longer for that.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{assert_nothing_left, calls, deleted, is_ready, waiting};
use crate::pod::fake::{Fake, Node, Pull};
use crate::pod::sample;

const JUMPS: [i64; 2] = [-3600, 3600];

#[tokio::test(start_paused = true)]
async fn a_crash_loop_waits_no_longer() {
    for jump in JUMPS {
        let node = Node::start(&Fake::new());
        let runs = (Duration::from_secs(1), 1);
        node.fake.state().runs.insert("a".into(), runs);
        node.apply(&sample::pod("Always", &[], &["a"])).await;
        node.until("backed off", |state| waiting(state) == "CrashLoopBackOff")
            .await;
        node.fake.set_clock(jump);
        let (began, before) = (Instant::now(), calls(&node.fake.state(), &["start"]).len());
        node.until("started", |state| calls(state, &["start"]).len() > before)
            .await;
        let waited = began.elapsed();
        assert!(waited <= Duration::from_secs(11), "{jump}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_and_a_sandbox_are_tried_again_no_later() {
    for jump in JUMPS {
        let node = Node::start(&Fake::new());
        node.fake.state().broken_network = Some("no address".into());
        node.fake.state().pull = Pull::Fails;
        node.apply(&sample::pod("Always", &[], &["a"])).await;
        node.until("tried", |state| !calls(state, &["run sandbox"]).is_empty())
            .await;
        sleep(Duration::from_secs(1)).await;
        node.fake.set_clock(jump);
        node.fake.state().broken_network = None;
        let began = Instant::now();
        node.until("pulled", |state| waiting(state) == "ImagePullBackOff")
            .await;
        assert!(began.elapsed() < Duration::from_secs(20), "{jump}");
        node.fake.set_clock(jump);
        node.fake.state().pull = Pull::Works;
        let began = Instant::now();
        node.until("ready", is_ready).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{jump}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_has_the_grace_that_it_was_given() {
    for jump in JUMPS {
        let node = Node::start(&Fake::new());
        node.fake.state().deaf.extend(["a", "s"].map(str::to_owned));
        node.fake.state().runs.clear();
        let pod = sample::pod("Always", &["s:sidecar"], &["a"]);
        node.apply(&pod).await;
        node.until("ready", is_ready).await;
        let began = Instant::now();
        node.apply(&deleted(&pod, 30)).await;
        node.until("stopping", |state| !calls(state, &["stop"]).is_empty())
            .await;
        node.fake.set_clock(jump);
        node.until("terminated", |state| state.terminated > 0).await;
        let took = began.elapsed().as_secs();
        assert!((30..=35).contains(&took), "{jump}: {took}");
        assert_nothing_left(&node.fake.state());
    }
}
