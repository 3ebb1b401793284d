//! What reaches a container from its pod and from other objects: environment, volumes, the token.

use anyhow::{Result, ensure};
use hanok_e2e::cluster::{self, Space};
use hanok_e2e::manifest::{pod, shell};
use hanok_e2e::pki::Authority;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![
        Cluster:
        environment_is_plain_expanded_and_of_the_downward_api,
        config_map_and_secret_are_files_and_variables,
        variables_are_read_from_a_file_that_init_has_written,
        pod_waits_for_its_config_map,
        trust_bundles_are_files_that_follow_them,
        empty_dir_is_shared_by_the_containers_and_gone_with_the_pod;
        Node:
        pod_calls_the_api_server_with_its_token,
    ]
}

fn environment_is_plain_expanded_and_of_the_downward_api(space: &Space<'_>) -> Result<()> {
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let look =
        "echo $GREETING; echo $NAME/$SPACE/$NODE/$ACCOUNT; echo $IP; echo $KUBERNETES_SERVICE_HOST";
    let main = shell("main", look)
        .env("WHO", "world")
        .env("GREETING", "hello $(WHO) $$(WHO)")
        .env_from("NAME", field("metadata.name"))
        .env_from("SPACE", field("metadata.namespace"))
        .env_from("NODE", field("spec.nodeName"))
        .env_from("ACCOUNT", field("spec.serviceAccountName"))
        .env_from("IP", field("status.podIP"));
    space.apply(&pod("env").restart("Never").with(main).manifest())?;
    let pod = space.until_phase("env", "Succeeded")?;
    let node = pod
        .spec
        .as_ref()
        .and_then(|s| s.node_name.clone())
        .unwrap_or_default();
    let log = space.kubectl("logs env")?;
    let lines: Vec<&str> = log.lines().collect();
    let place = format!("env/{}/{node}/default", space.name());
    ensure!(
        lines.len() == 4 && lines[..2] == ["hello world $(WHO)", place.as_str()],
        "{lines:?}"
    );
    ensure!(lines[2].parse::<std::net::IpAddr>().is_ok(), "{lines:?}");
    ensure!(lines[3].parse::<std::net::IpAddr>().is_ok(), "{lines:?}");
    Ok(())
}

fn config_map_and_secret_are_files_and_variables(space: &Space<'_>) -> Result<()> {
    space.kubectl("create configmap settings --from-literal=colour=blue --from-literal=size=9")?;
    space.kubectl("create secret generic keys --from-literal=password=s3cret")?;
    let look = "cat /settings/colour /keys/password; echo; echo $COLOUR $PASSWORD; touch /keys/x 2>&1 | tail -n 1";
    let main = shell("main", look)
        .mount("settings", "/settings")
        .set(
            "volumeMounts",
            json!([
                { "name": "settings", "mountPath": "/settings" },
                { "name": "keys", "mountPath": "/keys", "readOnly": true },
            ]),
        )
        .env_from(
            "COLOUR",
            json!({ "configMapKeyRef": { "name": "settings", "key": "colour" } }),
        )
        .env_from(
            "PASSWORD",
            json!({ "secretKeyRef": { "name": "keys", "key": "password" } }),
        );
    let pod = pod("reads")
        .restart("Never")
        .volume("settings", json!({ "configMap": { "name": "settings" } }))
        .volume(
            "keys",
            json!({ "secret": { "secretName": "keys", "defaultMode": 0o400 } }),
        )
        .with(main);
    space.apply(&pod.manifest())?;
    space.until_phase("reads", "Succeeded")?;
    let log = space.kubectl("logs reads")?;
    let lines: Vec<&str> = log.lines().collect();
    ensure!(
        lines.len() == 3 && lines[..2] == ["blues3cret", "blue s3cret"],
        "{lines:?}"
    );
    ensure!(lines[2].contains("Read-only file system"), "{lines:?}");
    Ok(())
}

fn variables_are_read_from_a_file_that_init_has_written(space: &Space<'_>) -> Result<()> {
    let of_file = |key: &str| json!({ "fileKeyRef": { "volumeName": "made", "path": "env", "key": key, "optional": true } });
    let write = r##"printf "# made\nCOLOUR='deep \$blue'\nLONG='one\ntwo'\n" > /made/env"##;
    let pod = pod("reads")
        .restart("Never")
        .volume("made", json!({ "emptyDir": {} }))
        .init(shell("writes", write).mount("made", "/made"))
        .with(
            shell("main", r#"echo "$COLOUR/$LONG/${NONE-none}""#)
                .env_from("COLOUR", of_file("COLOUR"))
                .env_from("LONG", of_file("LONG"))
                .env_from("NONE", of_file("NONE")),
        );
    space.apply(&pod.manifest())?;
    space.until_phase("reads", "Succeeded")?;
    let log = space.kubectl("logs reads")?;
    ensure!(log.trim() == "deep $blue/one\ntwo/none", "{log}");
    Ok(())
}

fn pod_waits_for_its_config_map(space: &Space<'_>) -> Result<()> {
    let late = pod("waits")
        .volume("late", json!({ "configMap": { "name": "late" } }))
        .with(shell("main", "cat /late/word; sleep 1000").mount("late", "/late"));
    space.apply(&late.manifest())?;
    space.until_event("waits", &["FailedMount", "late"], 20)?;
    let pod = space.pod("waits")?;
    ensure!(
        cluster::waiting(&pod, "main") == "ContainerCreating",
        "{}",
        cluster::describe(&pod)
    );
    space.kubectl("create configmap late --from-literal=word=come")?;
    space.until_ready("waits")?;
    Ok(())
}

fn trust_bundles_are_files_that_follow_them(space: &Space<'_>) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [old, new, signers] = ["old", "new", "signers"].map(|name| {
        let authority = Authority::create(dir.path(), name)?;
        anyhow::Ok(std::fs::read_to_string(authority.certificate())?)
    });
    let (old, new, signers) = (old?, new?, signers?);
    // Bundles belong to the cluster, and to nobody who would delete them with the namespace.
    let plain = space.name();
    let of_signer = ["1", "2"].map(|nth| format!("example.com:{plain}:{nth}"));
    let signer = format!("example.com/{plain}");
    let bundle = |name: &str, spec: serde_json::Value| {
        json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
            "metadata": { "name": name, "labels": { "live": "yes" } }, "spec": spec })
    };
    let told = format!("The first\n{old}The end\n");
    space.apply(&bundle(plain, json!({ "trustBundle": told })))?;
    let sources = json!([
        { "clusterTrustBundle": { "name": plain, "path": "plain" } },
        { "clusterTrustBundle": { "name": "none", "path": "none", "optional": true } },
        { "clusterTrustBundle": { "signerName": signer, "path": "signer",
            "labelSelector": { "matchLabels": { "live": "yes" } } } },
    ]);
    let reads = pod("trusts")
        .volume("roots", json!({ "projected": { "sources": sources } }))
        .with(shell("main", "sleep 1000").mount("roots", "/roots"));
    space.apply(&reads.manifest())?;
    space.until_event(
        "trusts",
        &["FailedMount", "matched zero ClusterTrustBundles"],
        20,
    )?;
    let spec = json!({ "signerName": signer, "trustBundle": signers });
    // The second holds the same certificate, which is in the file once.
    for name in &of_signer {
        space.apply(&bundle(name, spec.clone()))?;
    }
    space.until_ready("trusts")?;
    let read = |file: &str| space.kubectl(&format!("exec trusts -- cat /roots/{file}"));
    ensure!(read("plain")? == old, "{}", read("plain")?);
    ensure!(read("signer")? == signers, "{}", read("signer")?);
    ensure!(read("none")?.is_empty(), "{}", read("none")?);
    space.apply(&bundle(plain, json!({ "trustBundle": new })))?;
    space.until("the new root", 20, || {
        let found = read("plain")?;
        ensure!(found == new, "{found}");
        Ok(())
    })?;
    let [one, two] = of_signer;
    space.kubectl(&format!("delete clustertrustbundles {plain} {one} {two}"))?;
    Ok(())
}

fn empty_dir_is_shared_by_the_containers_and_gone_with_the_pod(space: &Space<'_>) -> Result<()> {
    let shared = |name: &str, medium: &str| {
        pod(name)
            .volume("shared", json!({ "emptyDir": { "medium": medium } }))
            .with(shell("writes", "echo hi > /shared/word; sleep 1000").mount("shared", "/shared"))
            .with(shell("reads", "sleep 1000").mount("shared", "/shared"))
    };
    for (name, medium) in [("disk", ""), ("memory", "Memory")] {
        space.apply(&shared(name, medium).manifest())?;
        space.until_ready(name)?;
        space.until("the word", 10, || {
            let word = space.kubectl(&format!("exec {name} -c reads -- cat /shared/word"))?;
            ensure!(word == "hi\n", "{word:?}");
            Ok(())
        })?;
    }
    let mounts = space.kubectl("exec memory -c reads -- grep /shared /proc/mounts")?;
    ensure!(mounts.starts_with("tmpfs"), "{mounts:?}");
    Ok(())
}

fn pod_calls_the_api_server_with_its_token(space: &Space<'_>) -> Result<()> {
    let client = shell("main", "")
        .set("command", json!(null))
        .image("agnhost:2");
    let client = client.set("args", json!(["inclusterclient", "--poll-interval=1"]));
    space.apply(&pod("client").with(client).manifest())?;
    space.until_ready("client")?;
    let user = format!("system:serviceaccount:{}:default", space.name());
    space.until("an answer from the API server", 20, || {
        let requests = space.lab()?.audit().requests_of(&user);
        ensure!(
            requests.iter().any(|r| r.code == 200),
            "as {user}: {requests:?}, {}",
            space.kubectl("logs client")?
        );
        Ok(())
    })?;
    let mode = space.kubectl_with(
        "exec client --",
        &[
            "sh",
            "-c",
            "cd /var/run/secrets/kubernetes.io/serviceaccount && ls",
        ],
    )?;
    ensure!(mode == "ca.crt\nnamespace\ntoken\n", "{mode:?}");
    Ok(())
}
