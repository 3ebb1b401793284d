//! Deployments and Jobs: what people run.

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Cluster: deployment_with_init_and_app_containers_is_reached_by_pod_ip, job_fails_twice_and_then_succeeds]
}

fn deployment_with_init_and_app_containers_is_reached_by_pod_ip(space: &Space<'_>) -> Result<()> {
    let web = pod("web")
        .init(testapp("first", "print one"))
        .init(testapp("second", "print two"))
        .with(testapp("front", "serve 8080 front"))
        .with(testapp("back", "serve 8081 back"));
    space.apply(&web.deployment(3))?;
    space.kubectl("rollout status deployment/web --timeout=60s")?;
    let pods = space.until_all_ready(3, 30)?;
    space.apply(&pod("client").with(shell("main", "sleep 1000")).manifest())?;
    space.until_ready("client")?;
    for pod in &pods {
        let (name, ip) = (cluster::name(pod), cluster::ip(pod));
        let local = space.kubectl(&format!(
            "exec {name} -c front -- /testapp get http://127.0.0.1:8081/"
        ))?;
        ensure!(local.trim() == "back", "localhost answers {local:?}");
        let remote = space.kubectl(&format!(
            "exec client -- wget -qO- http://{ip}:8080/hostname"
        ))?;
        ensure!(remote.trim() == name, "{name} calls itself {remote:?}");
    }
    space.kubectl("scale deployment/web --replicas=0")?;
    space.kubectl("delete pod client --now")?;
    space.until_no_pods(30)
}

fn job_fails_twice_and_then_succeeds(space: &Space<'_>) -> Result<()> {
    let job = pod("third-time")
        .restart("OnFailure")
        .volume("count", serde_json::json!({ "emptyDir": {} }))
        .with(testapp("main", "fail 2 /count/runs").mount("count", "/count"));
    space.apply(&job.job())?;
    space.kubectl("wait --for=condition=complete job/third-time --timeout=90s")?;
    let pods = space.pods()?;
    ensure!(
        pods.len() == 1,
        "OnFailure restarts in the same pod, but there are {}",
        pods.len()
    );
    ensure!(
        cluster::restarts(&pods[0], "main") == 2,
        "{}",
        cluster::describe(&pods[0])
    );
    ensure!(
        cluster::ended(&pods[0], "main") == Some((0, "Completed")),
        "{}",
        cluster::describe(&pods[0])
    );
    let log = space.kubectl("logs job/third-time")?;
    ensure!(log.trim() == "run 3", "the last run says {log:?}");
    Ok(())
}
