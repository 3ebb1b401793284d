//! A machine joins with nothing but a bootstrap token, and its certificates are renewed while it works.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::lab::Node;
use hanok_e2e::manifest::{pod, testapp};
use hanok_e2e::paths;
use hanok_e2e::process::{Spawn, run};
use hanok_e2e::runner::Story;
use hanok_e2e::stories;
use rustix::process::Signal;
use serde_json::json;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        machine_joins_with_a_bootstrap_token,
        certificates_are_renewed_before_they_expire,
    ]
}

/// The node's name, and that of its process.
const JOINER: &str = "joiner";
/// Ports of its own, beside those of the node on whose machine it lives.
const PORT: u16 = 10350;

/// A second agent on the machine of `n2`, with everything of its own.
struct Joiner<'a> {
    space: &'a Space<'a>,
    machine: Node,
    dir: PathBuf,
}

impl<'a> Joiner<'a> {
    fn new(space: &'a Space<'a>) -> Result<Self> {
        let lab = space.lab()?;
        let joiner = Self {
            space,
            machine: lab.node("n2"),
            dir: lab.dir().join(JOINER),
        };
        fs::create_dir_all(joiner.dir.join("cni"))?;
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": { "x509": { "clientCAFile": lab.pki().join("ca.crt") } },
            "cgroupRoot": joiner.machine.netns(),
            "failSwapOn": false,
            "healthzPort": PORT + 1,
            "podLogsDir": joiner.dir.join("pod-logs"),
            "port": PORT,
            "rotateCertificates": true,
            "serverTLSBootstrap": true,
        });
        fs::write(joiner.dir.join("config.yaml"), config.to_string())?;
        Ok(joiner)
    }

    fn start(&self) -> Result<()> {
        let lab = self.space.lab()?;
        let own = |name: &str| self.dir.join(name).display().to_string();
        let run = |name: &str| {
            let path = lab.run_dir().join(JOINER).join(name);
            path.display().to_string()
        };
        let token = lab.kubeconfig("bootstrap").display().to_string();
        let flags = [
            ("bootstrap-kubeconfig", token),
            ("kubeconfig", own("kubeconfig")),
            ("config", own("config.yaml")),
            ("hostname-override", JOINER.to_owned()),
            ("node-ip", self.machine.address()),
            ("register-with-taints", "joining=yes:NoSchedule".to_owned()),
            ("state-dir", own("state")),
            ("cert-dir", own("pki")),
            ("run-dir", run("run")),
            ("netns-dir", run("netns")),
            ("containers-log-dir", own("container-logs")),
            ("cni-conf-dir", own("cni")),
            ("plain-http-registry", lab.registry()),
            ("bridge-name", "hanok-join0".to_owned()),
        ];
        let flags = flags.into_iter().map(|(k, v)| format!("--{k}={v}"));
        lab.processes().spawn(&Spawn {
            name: JOINER,
            netns: Some(&self.machine.netns()),
            program: paths::hanok()?,
            args: std::iter::once("agent".to_owned()).chain(flags).collect(),
            env: vec![("RUST_LOG".into(), "info".into())],
        })?;
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let processes = self.space.lab()?.processes();
        processes.stop(JOINER, Signal::TERM, Duration::from_secs(10))
    }

    fn until_ready(&self) -> Result<()> {
        let log = || self.space.lab().map(|lab| lab.processes().log_tail(JOINER));
        let ready = self.space.until("the node to be ready", 30, || {
            let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
            let ready = self.space.kubectl_with("get node joiner -o", &[path])?;
            ensure!(ready == "True", "Ready is {ready:?}");
            Ok(())
        });
        ready.with_context(|| log().unwrap_or_default())
    }

    /// Approves what waits for a person: serving certificates.
    fn approve_serving(&self) -> Result<()> {
        self.space.until("a serving certificate", 30, || {
            let names = self.space.kubectl(
                "get csr --field-selector spec.signerName=kubernetes.io/kubelet-serving -o name",
            )?;
            ensure!(!names.is_empty(), "no request for one");
            for name in names.lines() {
                self.space.kubectl(&format!("certificate approve {name}"))?;
            }
            let file = self.dir.join("pki/kubelet-server-current.pem");
            ensure!(file.exists(), "{} is absent", file.display());
            Ok(())
        })
    }

    /// Whether a TLS client that trusts the cluster's CA alone takes the kubelet API for this node's.
    fn serves_with_the_clusters_certificate(&self) -> Result<()> {
        let lab = self.space.lab()?;
        let ca = lab.pki().join("ca.crt").display().to_string();
        let netns = format!("--net=/run/netns/{}", self.machine.netns());
        let address = self.machine.address();
        let peer = format!("{address}:{PORT}");
        let args = [
            netns.as_str(),
            "openssl",
            "s_client",
            "-CAfile",
            &ca,
            "-verify_return_error",
            "-verify_ip",
            &address,
            "-connect",
            &peer,
        ];
        run("nsenter", &args).map(drop)
    }

    /// Runs a pod on the node and reads its log through the API server.
    fn runs(&self, name: &str) -> Result<()> {
        let on_host = pod(name)
            .bound_to(JOINER)
            .set("hostNetwork", true)
            .set("tolerations", json!([{ "operator": "Exists" }]))
            .restart("Never")
            .with(testapp("main", "print hello"));
        self.space.apply(&on_host.manifest())?;
        self.space.until_phase(name, "Succeeded")?;
        let log = self.space.kubectl(&format!("logs {name}"))?;
        ensure!(log.contains("hello"), "the log is {log:?}");
        self.space.kubectl(&format!("delete pod {name} --now"))?;
        Ok(())
    }

    /// Removes every trace.
    fn remove(&self) -> Result<()> {
        self.space.clear()?;
        self.stop()?;
        self.space
            .kubectl("delete node joiner --ignore-not-found")?;
        self.space.kubectl("delete csr --all")?;
        let run_dir = self.space.lab()?.run_dir().join(JOINER);
        for dir in [&self.dir, &run_dir] {
            fs::remove_dir_all(dir).or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            })?;
        }
        Ok(())
    }
}

/// Tells a story of a joiner, and removes it whatever comes.
fn with_joiner(space: &Space<'_>, tell: impl FnOnce(&Joiner<'_>) -> Result<()>) -> Result<()> {
    let joiner = Joiner::new(space)?;
    let told = tell(&joiner);
    told.and(joiner.remove())
}

fn machine_joins_with_a_bootstrap_token(space: &Space<'_>) -> Result<()> {
    with_joiner(space, |joiner| {
        joiner.start()?;
        joiner.until_ready()?;
        let kubeconfig = fs::read_to_string(joiner.dir.join("kubeconfig"))?;
        ensure!(!kubeconfig.contains("token"), "{kubeconfig}");
        joiner.approve_serving()?;
        space.until("the new certificate to be served", 10, || {
            joiner.serves_with_the_clusters_certificate()
        })?;
        joiner.runs("first")?;
        // The token may go: the node has a certificate of its own, also after a restart.
        joiner.stop()?;
        let requests = || space.kubectl("get csr -o name");
        let before = requests()?;
        joiner.start()?;
        joiner.until_ready()?;
        joiner.runs("second")?;
        ensure!(requests()? == before, "it asked again: {}", requests()?);
        Ok(())
    })
}

fn certificates_are_renewed_before_they_expire(space: &Space<'_>) -> Result<()> {
    with_joiner(space, |joiner| {
        joiner.start()?;
        joiner.until_ready()?;
        joiner.stop()?;
        // In place of the certificate, one that has seventeen seconds to live of a year.
        let lab = space.lab()?;
        let short = Duration::from_secs(17);
        let end = SystemTime::now() + short;
        let old = short_lived(&lab.pki(), &joiner.dir, end)?;
        fs::write(joiner.dir.join("pki/kubelet-client-current.pem"), &old)?;
        joiner.start()?;
        joiner.until_ready()?;
        let left = end
            .duration_since(SystemTime::now())
            .context("the node took too long to start")?;
        std::thread::sleep(left + Duration::from_secs(1));
        let new = fs::read_to_string(joiner.dir.join("pki/kubelet-client-current.pem"))?;
        ensure!(new != old, "the certificate is still the old one");
        joiner.runs("later")
    })
}

/// A certificate of the node with its key, valid for a year that ends at this time.
fn short_lived(pki: &Path, dir: &Path, end: SystemTime) -> Result<String> {
    let path = |name: &str| dir.join(name).display().to_string();
    let ca = |name: &str| pki.join(name).display().to_string();
    let (key, csr, config) = (path("old.key"), path("old.csr"), path("ca.conf"));
    let text = format!(
        "[ca]\ndefault_ca=one\n[one]\ndatabase={}\nnew_certs_dir={}\nrand_serial=yes\ndefault_md=sha256\n\
         policy=any\nunique_subject=no\nx509_extensions=client\n\
         [any]\norganizationName=supplied\ncommonName=supplied\n\
         [client]\nkeyUsage=digitalSignature\nextendedKeyUsage=clientAuth\n",
        path("index.txt"),
        dir.display()
    );
    fs::write(&config, text)?;
    fs::write(path("index.txt"), "")?;
    let subject = format!("/O=system:nodes/CN=system:node:{JOINER}");
    run(
        "openssl",
        &[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            &key,
            "-subj",
            &subject,
            "-out",
            &csr,
        ],
    )?;
    let at = |time: SystemTime| -> Result<String> {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let stamp = format!("--date=@{seconds}");
        Ok(run("date", &["--utc", &stamp, "+%Y%m%d%H%M%SZ"])?
            .trim()
            .to_owned())
    };
    let year = Duration::from_secs(365 * 24 * 3600);
    let (from, until) = (at(end - year)?, at(end)?);
    let certificate = run(
        "openssl",
        &[
            "ca",
            "-batch",
            "-notext",
            "-config",
            &config,
            "-cert",
            &ca("ca.crt"),
            "-keyfile",
            &ca("ca.key"),
            "-in",
            &csr,
            "-startdate",
            &from,
            "-enddate",
            &until,
        ],
    )?;
    Ok(certificate + &fs::read_to_string(key)?)
}
