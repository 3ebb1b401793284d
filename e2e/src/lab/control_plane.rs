//! etcd, the API server, the controller manager and the scheduler, each a process in the control plane's
//! namespace, with certificates of the lab's own authority.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::topology::KUBERNETES_SERVICE;
use super::{Lab, NODES, audit};
use crate::kubeconfig::{self, Credential};
use crate::paths;
use crate::pki::{self, Authority};
use crate::process::{Spawn, wait_for};

const ETCD: &str = "etcd";
const API_SERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

/// The order in which they stop: without etcd the API server lingers for a minute.
pub(super) const STOP_ORDER: [&str; 4] = [SCHEDULER, CONTROLLER_MANAGER, API_SERVER, ETCD];

/// A bootstrap token's two halves; a lab is no secret.
const TOKEN: (&str, &str) = ("hanok0", "0123456789abcdef");

/// Makes the authorities, everybody's certificates and the kubeconfigs.
pub(super) fn create_identities(lab: &Lab) -> Result<()> {
    let pki = lab.pki();
    fs::create_dir_all(&pki)?;
    let address = lab.control_plane_address();
    let ca = Authority::create(&pki, "ca")?;
    let server_names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "127.0.0.1",
        KUBERNETES_SERVICE,
        &address,
    ];
    ca.issue("apiserver", "kube-apiserver", "", &server_names)?;
    ca.issue(
        "apiserver-kubelet-client",
        "kube-apiserver-kubelet-client",
        "system:masters",
        &[],
    )?;
    let front = Authority::create(&pki, "front-proxy-ca")?;
    front.issue("front-proxy-client", "front-proxy-client", "", &[])?;
    pki::create_token_keys(&pki)?;

    let mut users = vec![
        ("admin".to_owned(), "admin".to_owned(), "system:masters"),
        (
            CONTROLLER_MANAGER.to_owned(),
            "system:kube-controller-manager".to_owned(),
            "",
        ),
        (SCHEDULER.to_owned(), "system:kube-scheduler".to_owned(), ""),
    ];
    for node in NODES.into_iter().chain(["peer"]) {
        users.push((
            format!("node-{node}"),
            format!("system:node:{node}"),
            "system:nodes",
        ));
    }
    for (file, name, group) in users {
        let identity = ca.issue(&file, &name, group, &[])?;
        let user = Credential::Certificate(&identity);
        kubeconfig::write(
            &lab.kubeconfig(&file),
            &lab.server(),
            &ca.certificate(),
            &user,
        )?;
    }
    let token = format!("{}.{}", TOKEN.0, TOKEN.1);
    let user = Credential::Token(&token);
    kubeconfig::write(
        &lab.kubeconfig("bootstrap"),
        &lab.server(),
        &ca.certificate(),
        &user,
    )
}

/// Starts all four and waits until the API server is ready and pods can be created.
pub(super) fn start(lab: &Lab) -> Result<()> {
    spawn(lab, ETCD, etcd_flags(lab))?;
    start_api_server(lab)?;
    start_controllers(lab)?;
    apply_bootstrap(lab)?;
    // Pods are refused in a namespace that has no service account yet.
    wait_for(
        "the default service account",
        Duration::from_secs(30),
        || {
            alive(lab, &[CONTROLLER_MANAGER, SCHEDULER])?;
            lab.kubectl(&["get", "serviceaccount", "default"])
        },
    )?;
    Ok(())
}

fn start_controllers(lab: &Lab) -> Result<()> {
    spawn(lab, CONTROLLER_MANAGER, controller_manager_flags(lab))?;
    let kubeconfig = lab.kubeconfig(SCHEDULER).display().to_string();
    let flags = [
        ("kubeconfig", kubeconfig),
        ("leader-elect", "false".to_owned()),
    ];
    spawn(
        lab,
        SCHEDULER,
        flags.map(|(k, v)| format!("--{k}={v}")).to_vec(),
    )?;
    Ok(())
}

/// Starts the API server again. The controllers begin anew as well: by themselves they come back up to a minute later,
/// and no story is about that.
pub(super) fn restart_api_server(lab: &Lab) -> Result<()> {
    start_api_server(lab)?;
    for name in [CONTROLLER_MANAGER, SCHEDULER] {
        lab.processes()
            .stop(name, Signal::KILL, Duration::from_secs(10))?;
    }
    start_controllers(lab)
}

/// Starts the API server and waits until it is ready.
fn start_api_server(lab: &Lab) -> Result<()> {
    fs::write(lab.dir().join("audit-policy.yaml"), audit::POLICY)?;
    spawn(lab, API_SERVER, api_server_flags(lab))?;
    let ready = wait_for("the API server", Duration::from_secs(60), || {
        match lab.kubectl(&["get", "--raw", "/readyz"]) {
            Ok(_) => Ok(Ok(())),
            // A process that has ended will not become ready.
            Err(e) => match alive(lab, &[ETCD, API_SERVER]) {
                Ok(()) => Err(e),
                Err(dead) => Ok(Err(dead)),
            },
        }
    });
    ready?
}

/// Stops the API server.
pub(super) fn stop_api_server(lab: &Lab) -> Result<()> {
    lab.processes()
        .stop(API_SERVER, Signal::KILL, Duration::from_secs(10))
}

/// Whether the API server's process runs.
pub(super) fn api_server_runs(lab: &Lab) -> bool {
    lab.processes().running(API_SERVER).is_some()
}

fn alive(lab: &Lab, names: &[&str]) -> Result<()> {
    for name in names {
        let tail = || lab.processes().log_tail(name);
        ensure!(
            lab.processes().running(name).is_some(),
            "{name} has ended: {}",
            tail()
        );
    }
    Ok(())
}

fn spawn(lab: &Lab, name: &str, args: Vec<String>) -> Result<()> {
    let netns = lab.netns("cp");
    let program = paths::go_program(name)?;
    let spawn = Spawn {
        name,
        netns: Some(&netns),
        program,
        args,
        env: Vec::new(),
    };
    lab.processes().spawn(&spawn).map(drop)
}

fn etcd_flags(lab: &Lab) -> Vec<String> {
    let client = "http://127.0.0.1:2379";
    vec![
        format!("--data-dir={}", lab.dir().join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        "--listen-peer-urls=http://127.0.0.1:2380".into(),
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ]
}

fn api_server_flags(lab: &Lab) -> Vec<String> {
    let address = lab.control_plane_address();
    let pki = |name: &str| lab.pki().join(name).display().to_string();
    let in_dir = |name: &str| lab.dir().join(name).display().to_string();
    let flags = [
        ("etcd-servers", "http://127.0.0.1:2379".into()),
        ("bind-address", address.clone()),
        ("advertise-address", address),
        ("secure-port", "6443".into()),
        ("service-cluster-ip-range", "10.96.0.0/16".into()),
        ("client-ca-file", pki("ca.crt")),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
        ("service-account-key-file", pki("sa.pub")),
        ("service-account-signing-key-file", pki("sa.key")),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc".into(),
        ),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("enable-bootstrap-token-auth", "true".into()),
        ("allow-privileged", "true".into()),
        (
            "kubelet-client-certificate",
            pki("apiserver-kubelet-client.crt"),
        ),
        ("kubelet-client-key", pki("apiserver-kubelet-client.key")),
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("requestheader-client-ca-file", pki("front-proxy-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".into()),
        (
            "requestheader-extra-headers-prefix",
            "X-Remote-Extra-".into(),
        ),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("proxy-client-cert-file", pki("front-proxy-client.crt")),
        ("proxy-client-key-file", pki("front-proxy-client.key")),
        ("audit-policy-file", in_dir("audit-policy.yaml")),
        ("audit-log-path", in_dir("audit.log")),
        ("event-ttl", "1h".into()),
    ];
    flags.map(|(k, v)| format!("--{k}={v}")).to_vec()
}

fn controller_manager_flags(lab: &Lab) -> Vec<String> {
    let pki = |name: &str| lab.pki().join(name).display().to_string();
    let flags = [
        (
            "kubeconfig",
            lab.kubeconfig(CONTROLLER_MANAGER).display().to_string(),
        ),
        ("service-account-private-key-file", pki("sa.key")),
        ("root-ca-file", pki("ca.crt")),
        ("cluster-signing-cert-file", pki("ca.crt")),
        ("cluster-signing-key-file", pki("ca.key")),
        ("use-service-account-credentials", "true".into()),
        ("controllers", "*,bootstrapsigner,tokencleaner".into()),
        ("allocate-node-cidrs", "true".into()),
        ("cluster-cidr", "10.244.0.0/16".into()),
        ("leader-elect", "false".into()),
    ];
    flags.map(|(k, v)| format!("--{k}={v}")).to_vec()
}

/// Makes the bootstrap token valid and lets who has it ask for a node's certificate.
fn apply_bootstrap(lab: &Lab) -> Result<()> {
    let file = lab.dir().join("bootstrap.yaml");
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{ name: bootstrap-token-{id}, namespace: kube-system }}\n\
         type: bootstrap.kubernetes.io/token\n\
         stringData: {{ token-id: {id}, token-secret: {secret:?}, usage-bootstrap-authentication: \"true\", \
         usage-bootstrap-signing: \"true\" }}\n",
        id = TOKEN.0,
        secret = TOKEN.1
    );
    let binding = |name: &str, role: &str, group: &str| {
        format!(
            "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
             metadata: {{ name: {name} }}\n\
             roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role:?} }}\n\
             subjects: [{{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: {group:?} }}]\n"
        )
    };
    let client = "system:certificates.k8s.io:certificatesigningrequests";
    let text = [
        secret,
        binding(
            "lab:bootstrap",
            "system:node-bootstrapper",
            "system:bootstrappers",
        ),
        binding(
            "lab:approve",
            &format!("{client}:nodeclient"),
            "system:bootstrappers",
        ),
        binding(
            "lab:renew",
            &format!("{client}:selfnodeclient"),
            "system:nodes",
        ),
    ];
    fs::write(&file, text.concat())?;
    let path = file.display().to_string();
    wait_for("the bootstrap token", Duration::from_secs(20), || {
        lab.kubectl(&["apply", "-f", &path])
    })
    .context("apply the bootstrap token")?;
    Ok(())
}
