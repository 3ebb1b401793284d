//! What a pod has is taken away from outside: its node notices, and builds the pod anew.

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, testapp};
use hanok_e2e::process::run;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab: pod_whose_network_namespace_is_unmounted_is_built_anew]
}

/// It is noticed whenever somebody looks at the pod, which is once a minute at the least; here the pod is touched.
fn pod_whose_network_namespace_is_unmounted_is_built_anew(space: &Space<'_>) -> Result<()> {
    let web = pod("web").on("n1").with(testapp("main", "serve"));
    space.apply(&web.manifest())?;
    let before = space.until_ready("web")?;
    let netns = netns_of(space, cluster::ip(&before))?;
    run("umount", &[&netns])?;
    space.kubectl("annotate pod web touched=yes")?;
    space.until_event("web", &["SandboxChanged"], 10)?;
    let after = space.until_pod("web", "ready again", 10, |pod| {
        cluster::is_ready(pod) && cluster::restarts(pod, "main") == 1
    })?;
    ensure!(cluster::container_id(&before, "main") != cluster::container_id(&after, "main"));
    let page = space.kubectl("exec web -- /testapp get http://127.0.0.1:8080/")?;
    ensure!(page == "hello\n", "{page:?}");
    Ok(())
}

/// The pinned network namespace on n1 in which somebody has this address.
fn netns_of(space: &Space<'_>, ip: &str) -> Result<String> {
    let dir = space.lab()?.node("n1").run_dir().join("netns");
    for entry in std::fs::read_dir(&dir)? {
        let path = entry?.path().display().to_string();
        let addresses = run(
            "nsenter",
            &[&format!("--net={path}"), "ip", "-o", "address"],
        )?;
        if addresses.contains(&format!(" {ip}/")) {
            return Ok(path);
        }
    }
    None.with_context(|| format!("nobody in {} has {ip}", dir.display()))
}
