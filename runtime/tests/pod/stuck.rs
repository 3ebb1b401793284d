//! Processes that no signal ends.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hanok_runtime::api::{ContainerState, ExecRequest, PodUid, RuntimeService};

use crate::rig::{PATIENCE, Rig, cgroups_below};

/// A v1 freezer: what is frozen in it does not even die. v2's lets go of who is killed.
struct Freezer(PathBuf);

impl Freezer {
    /// Freezes a process; none when there is no such freezer here.
    fn with(name: &str, pid: i32) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let line = own.lines().find_map(|line| line.split_once(":freezer:"));
        let base = PathBuf::from("/sys/fs/cgroup/freezer");
        let dir = base.join(line?.1.trim_start_matches('/')).join(name);
        fs::create_dir(&dir).unwrap();
        let freezer = Freezer(dir);
        fs::write(freezer.0.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(freezer.0.join("freezer.state"), "FROZEN").unwrap();
        Some(freezer)
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let deadline = Instant::now() + PATIENCE;
        // The dead leave it a moment after their end.
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn command(script: &str) -> ExecRequest {
    ExecRequest {
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        only_end: true,
        ..ExecRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_frozen_container_of_v2_runs_no_command_and_ends_all_the_same() {
    let rig = Rig::new("frozen").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "exec sleep 600")).await;
    let cgroups = cgroups_below(&rig.name);
    let own = cgroups.iter().find(|path| path.ends_with(id.as_str()));
    let freeze = own.map(|path| path.join("cgroup.freeze"));
    if let Some(freeze) = freeze.filter(|path| path.exists()) {
        fs::write(freeze, "1").unwrap();
        let runtime = rig.runtime();
        let session = runtime.exec(&id, command("exit 3")).await.unwrap();
        let short = Duration::from_millis(300);
        let pending = tokio::time::timeout(short, session.process.wait()).await;
        assert!(pending.is_err(), "it is frozen as well");
        session.process.kill().await.unwrap();
        let stop = runtime.stop_container(&id, short);
        tokio::time::timeout(PATIENCE, stop).await.unwrap().unwrap();
        assert_eq!(rig.status(&id).await.exit_code, 137);
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pod_that_cannot_be_killed_holds_nobody_up_and_goes_when_it_can() {
    let rig = Rig::new("stuck").await;
    let stuck = rig.sandbox().await.id;
    let id = rig.start(&stuck, rig.script("c", "exec sleep 600")).await;
    let pid = rig.status(&id).await.pid;
    if let Some(freezer) = Freezer::with(&rig.name, pid) {
        let runtime = rig.runtime();
        let mut stop = Box::pin(runtime.stop_container(&id, Duration::ZERO));
        let pending = tokio::time::timeout(Duration::from_millis(100), &mut stop).await;
        assert!(pending.is_err(), "it is still there");
        // A command is not frozen with it.
        let session = runtime.exec(&id, command("exit 3")).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, session.process.wait()).await;
        assert_eq!(ended.unwrap().unwrap(), 3);

        let mut other = rig.sandbox_config();
        other.uid = PodUid("other".into());
        other.cgroup_parent = "kubepods/podother".into();
        let begin = Instant::now();
        let other = runtime.run_pod_sandbox(other).await.unwrap().id;
        let healthy = rig.start(&other, rig.script("c", "exec sleep 600")).await;
        runtime
            .stop_container(&healthy, Duration::ZERO)
            .await
            .unwrap();
        runtime.remove_pod_sandbox(&other).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(rig.status(&id).await.state, ContainerState::Running);

        freezer.thaw();
        tokio::time::timeout(PATIENCE, stop).await.unwrap().unwrap();
        assert_eq!(rig.status(&id).await.exit_code, 137);
    }
    rig.finish().await;
}
