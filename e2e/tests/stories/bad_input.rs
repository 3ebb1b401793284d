//! Wrong files and names: one clear line that names file, field and value; never a panic.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::manifest::{pod, testapp};
use hanok_e2e::program::hanok_refuses;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        wrong_kubeconfig_is_one_clear_line,
        wrong_configuration_names_file_field_and_value,
        wrong_manifest_names_file_and_field,
        wrong_cni_file_makes_the_node_unready_and_is_named,
    ]
}

/// Runs `hanok` with a file of this content in place of FILE, and checks that its line holds every part.
fn refuses(args: &str, content: &str, parts: &[&str]) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("input.yaml");
    fs::write(&file, content)?;
    let root = dir.path().display().to_string();
    let args = args
        .replace("FILE", &file.display().to_string())
        .replace("DIR", &root);
    let line = hanok_refuses(&args.split_whitespace().collect::<Vec<_>>())?;
    for part in parts {
        ensure!(line.contains(part), "{part:?} is not in {line:?}");
    }
    Ok(())
}

fn wrong_kubeconfig_is_one_clear_line(space: &Space<'_>) -> Result<()> {
    let ca = space.lab()?.pki().join("ca.crt").display().to_string();
    let agent = format!(
        "agent --root-dir=DIR/lib --state-dir=DIR/state --client-ca-file={ca} --kubeconfig="
    );
    refuses(&format!("{agent}FILE"), "no: [ yaml", &["input.yaml"])?;
    let nowhere = "apiVersion: v1\nkind: Config\ncurrent-context: nowhere\nclusters: []\nusers: []\ncontexts: []\n";
    refuses(&format!("{agent}FILE"), nowhere, &["input.yaml", "nowhere"])?;
    refuses(&format!("{agent}DIR/absent"), "", &["absent"])
}

fn wrong_configuration_names_file_field_and_value(space: &Space<'_>) -> Result<()> {
    let kubeconfig = space.lab()?.kubeconfig("node-n1").display().to_string();
    let agent = format!(
        "agent --root-dir=DIR/lib --cert-dir=DIR/pki --kubeconfig={kubeconfig} --config=FILE"
    );
    let with = |field: &str| {
        format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{field}\n")
    };
    refuses(
        &agent,
        &with("maxPods: many"),
        &["input.yaml", "maxPods", "many"],
    )?;
    refuses(&agent, &with("maxPodz: 3"), &["input.yaml", "maxPodz"])?;
    refuses(
        &agent,
        "apiVersion: v1\nkind: Pod\n",
        &["input.yaml", "apiVersion", "v1"],
    )
}

fn wrong_manifest_names_file_and_field(_: &Space<'_>) -> Result<()> {
    let run = "run --state-dir=DIR/state --run-dir=DIR/run FILE";
    refuses(
        run,
        "kind: Pod\nmetadata: { name: x }\nspec: { containers: 7 }\napiVersion: v1\n",
        &["input.yaml", "containers"],
    )?;
    refuses(
        run,
        "kind: Teapot\napiVersion: v1\n",
        &["input.yaml", "no pod", "Teapot"],
    )?;
    refuses(run, "{ not yaml", &["input.yaml"])
}

fn wrong_cni_file_makes_the_node_unready_and_is_named(space: &Space<'_>) -> Result<()> {
    let node = space.lab()?.node("n1");
    let file = node.dir().join("cni/00-wrong.conflist");
    fs::write(
        &file,
        r#"{ "cniVersion": "1.0.0", "name": "wrong", "plugins": [ { "type": 7 } ] }"#,
    )?;
    let told = space.until("the node to name the file", 30, || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].message}"#;
        let message = space.kubectl_with("get node n1 -o", &[path])?;
        ensure!(message.contains("00-wrong.conflist"), "it says {message:?}");
        Ok(())
    });
    let lonely = pod("lonely")
        .bound_to("n1")
        .set("tolerations", json!([{ "operator": "Exists" }]));
    space.apply(&lonely.with(testapp("main", "serve")).manifest())?;
    let event = told.and_then(|()| space.until_event("lonely", &["00-wrong.conflist"], 20));
    fs::remove_file(&file)?;
    event?;
    node.wait_ready(Duration::from_secs(30))?;
    space.until_ready("lonely")?;
    Ok(())
}
