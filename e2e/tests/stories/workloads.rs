//! Deployments, StatefulSets, DaemonSets and Jobs: what people run, and how they clear a node of it.

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell, testapp};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Cluster:
        deployment_with_init_and_app_containers_is_reached_by_pod_ip,
        job_fails_twice_and_then_succeeds,
        stateful_set_starts_in_order_and_gives_a_name_again,
        daemon_set_has_a_pod_on_every_node,
        drained_node_gives_its_pods_to_others,
    ]
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

fn stateful_set_starts_in_order_and_gives_a_name_again(space: &Space<'_>) -> Result<()> {
    let db = pod("db").with(testapp("main", "serve"));
    space.apply(&db.stateful_set(2))?;
    space.kubectl("rollout status statefulset/db --timeout=60s")?;
    let pods = space.until_all_ready(2, 30)?;
    let started = |name: &str| {
        let pod = pods.iter().find(|pod| cluster::name(pod) == name);
        pod.and_then(|pod| pod.status.as_ref()?.start_time.clone())
    };
    ensure!(started("db-0").is_some() && started("db-0") <= started("db-1"));
    let before = space.pod("db-0")?;
    space.kubectl("delete pod db-0")?;
    let after = space.until_pod("db-0", "ready again", 30, |pod| {
        cluster::is_ready(pod) && pod.metadata.uid != before.metadata.uid
    })?;
    ensure!(cluster::restarts(&after, "main") == 0);
    space.kubectl("wait --for=condition=Ready pod/db-0 pod/db-1 --timeout=30s")?;
    space.kubectl("delete statefulset db")?;
    space.until_no_pods(30)
}

fn daemon_set_has_a_pod_on_every_node(space: &Space<'_>) -> Result<()> {
    let nodes = space.kubectl("get nodes -o name")?.lines().count();
    space.apply(&pod("agent").with(testapp("main", "serve")).daemon_set())?;
    space.kubectl("rollout status daemonset/agent --timeout=60s")?;
    let pods = space.until_all_ready(nodes, 30)?;
    let on: std::collections::BTreeSet<_> = pods.iter().map(node_of).collect();
    ensure!(on.len() == nodes, "{on:?}");
    space.kubectl("rollout restart daemonset/agent")?;
    space.kubectl("rollout status daemonset/agent --timeout=60s")?;
    space.kubectl("delete daemonset agent")?;
    space.until_no_pods(30)
}

fn drained_node_gives_its_pods_to_others(space: &Space<'_>) -> Result<()> {
    space.apply(&pod("web").with(testapp("main", "serve")).deployment(3))?;
    let pods = space.until_all_ready(3, 30)?;
    let node = node_of(&pods[0]);
    let drained = space
        .kubectl(&format!(
            "drain {node} --ignore-daemonsets --pod-selector=app=web --timeout=60s"
        ))
        .and_then(|_| space.kubectl("rollout status deployment/web --timeout=60s"))
        .and_then(|_| space.until_all_ready(3, 30));
    space.kubectl(&format!("uncordon {node}"))?;
    for pod in drained? {
        ensure!(
            node_of(&pod) != node,
            "{} is on {node} still",
            cluster::name(&pod)
        );
    }
    space.kubectl("delete deployment web")?;
    space.until_no_pods(30)
}

fn node_of(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    node.unwrap_or_default()
}
