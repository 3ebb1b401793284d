//! Flags and files to settings.

use std::path::Path;

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

fn settle(line: &[&str]) -> Result<Settings, String> {
    let line = [&["agent", "--kubeconfig=/k"], line].concat();
    let flags = Line::try_parse_from(line)
        .map_err(|error| error.to_string())?
        .flags;
    let machine = Machine {
        hostname: "Host1".into(),
        program_dir: "/usr/bin".into(),
    };
    resolve(&flags, Decoded::default(), &machine).map_err(|error| error.to_string())
}

#[test]
fn defaults_follow_the_layout_on_disk() {
    let settings = settle(&[]).unwrap();
    assert_eq!(settings.node_name, "host1");
    assert_eq!(settings.paths.root_dir, Path::new("/var/lib/hanok"));
    assert_eq!(settings.paths.cert_dir, Path::new("/var/lib/hanok/pki"));
    assert_eq!(settings.paths.shim, Path::new("/usr/bin/hanok-shim"));
    assert_eq!(settings.paths.pod_logs_dir, Path::new("/var/log/pods"));
    assert_eq!(settings.log_max_size, 10 << 20);
    assert!(settings.without_effect.is_empty());
}

#[test]
fn a_flag_goes_before_the_file() {
    let settings = settle(&[
        "--max-pods=250",
        "--register-node=false",
        "--anonymous-auth",
        "--node-ip=10.0.0.1,fd00::1",
        "--kube-reserved=cpu=100m",
        "--system-reserved=cpu=200m,memory=1Gi",
        "--pod-cidr=10.244.1.7/24",
        "--cluster-dns=10.96.0.10",
        "--container-runtime-endpoint=unix:///x",
        "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "--v=4",
    ])
    .unwrap();
    assert_eq!(settings.kubelet.max_pods, 250);
    assert!(!settings.kubelet.register_node);
    assert!(settings.kubelet.authentication.anonymous.enabled);
    assert_eq!(settings.node_ips.len(), 2);
    assert_eq!(settings.reserved["cpu"].to_millis(), 300);
    assert_eq!(settings.pod_cidrs[0].to_string(), "10.244.1.0/24");
    let suite = rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
    assert_eq!(settings.tls12, tls::Tls12::With(vec![suite]));
    let vain = [
        "--container-runtime-endpoint",
        "tlsCipherSuites (TLS_RSA_WITH_RC4_128_SHA)",
    ];
    assert_eq!(settings.without_effect, vain);
}

#[test]
fn a_bad_value_is_refused_by_name_with_the_way_out() {
    for (flag, message) in [
        (
            "--node-ip=10.0.0.1,10.0.0.2",
            "--node-ip: \"10.0.0.1,10.0.0.2\": write one",
        ),
        (
            "--hostname-override=a_b",
            "--hostname-override (default: the host name): \"a_b\": ",
        ),
        (
            "--node-labels=a",
            "--node-labels: \"a\": \"a\" has no \"=\"",
        ),
        (
            "--register-with-taints=a",
            "--register-with-taints: \"a\": ",
        ),
        ("--kube-reserved=cpu=x", "--kube-reserved: \"cpu=x\": cpu: "),
        (
            "--authorization-mode=RBAC",
            "--authorization-mode (authorization.mode): \"RBAC\": write",
        ),
        (
            "--read-only-port=10255",
            "--read-only-port (readOnlyPort): \"10255\": ",
        ),
        (
            "--tls-cert-file=/c",
            "--tls-cert-file (tlsCertFile), --tls-private-key-file: \"/c\"",
        ),
        (
            "--tls-min-version=TLS13",
            "--tls-min-version (tlsMinVersion): \"TLS13\": write VersionTLS10",
        ),
        (
            "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_X",
            "--tls-cipher-suites (tlsCipherSuites): \"TLS_X\": ",
        ),
        ("--cluster-dns=x", "--cluster-dns (clusterDNS): \"x\": "),
        ("--bridge-name=much-too-long-name", "--bridge-name: "),
        (
            "--pod-cidr=10.0.0.0",
            "--pod-cidr (podCIDR): \"10.0.0.0\": ",
        ),
        ("--pod-cidr=10.0.0.0/32", "--pod-cidr (podCIDR): "),
        (
            "--cgroup-root=../../x",
            "--cgroup-root (cgroupRoot): \"../../x\": ",
        ),
        (
            "--cgroup-driver=x",
            "--cgroup-driver (cgroupDriver): \"x\": ",
        ),
    ] {
        let error = settle(&[flag]).unwrap_err();
        assert!(error.starts_with(message), "{flag} gave {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_bad_value_of_a_file_is_refused_with_the_files_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let machine = Machine {
        hostname: "n".into(),
        program_dir: "/usr/bin".into(),
    };
    let flags = Flags {
        kubeconfig: Some("/k".into()),
        config: Some(path.clone()),
        ..Flags::default()
    };
    for (line, want) in [
        ("clusterDNS: [x]", "field clusterDNS: \"x\": write IP"),
        (
            "authorization: {mode: Maybe}",
            "field authorization.mode: \"Maybe\": write Webhook",
        ),
        (
            "containerLogMaxSize: lots",
            "field containerLogMaxSize: \"lots\": ",
        ),
        (
            "kubeReserved: {cpu: lots}",
            "field kubeReserved: \"lots\": ",
        ),
        (
            "tlsMinVersion: TLS13",
            "field tlsMinVersion: \"TLS13\": write VersionTLS10",
        ),
        (
            "tlsCipherSuites: [TLS_X]",
            "field tlsCipherSuites: \"TLS_X\": ",
        ),
        ("podCIDR: x", "field podCIDR: \"x\": "),
        ("podPidsLimit: -7", "field podPidsLimit: \"-7\": "),
        ("cgroupRoot: ../x", "field cgroupRoot: \"../x\": "),
    ] {
        std::fs::write(&path, format!("{head}{line}\n")).unwrap();
        let error = super::super::load(&flags, &machine)
            .unwrap_err()
            .to_string();
        let want = format!("{}: {want}", path.display());
        assert!(error.starts_with(&want), "{error} is not {want}");
    }
}

#[test]
fn a_node_joins_where_its_kubeconfig_is_to_be() {
    let settings = settle(&["--bootstrap-kubeconfig=/b"]).unwrap();
    let cluster = settings.cluster.unwrap();
    assert_eq!(cluster.kubeconfig, Path::new("/k"));
    assert_eq!(
        cluster.bootstrap_kubeconfig.as_deref(),
        Some(Path::new("/b"))
    );
    let alone = Flags {
        bootstrap_kubeconfig: Some("/b".into()),
        ..Flags::default()
    };
    let error = cluster_of(&alone).unwrap_err();
    assert!(error.contains("give --kubeconfig too"), "{error}");
}

#[test]
fn a_node_without_a_kubeconfig_is_alone() {
    let error = cluster_of(&Flags::default()).unwrap_err();
    assert!(error.starts_with("--kubeconfig: \"\": "), "{error}");
    let mut flags = Flags::default();
    flags.pods.pod_manifest_path = Some("/m".into());
    let error = cluster_of(&flags).unwrap_err();
    assert!(
        error.starts_with("--authentication-token-webhook"),
        "{error}"
    );
    flags.serving.authentication_token_webhook = Some(false);
    flags.serving.authorization_mode = Some("AlwaysAllow".into());
    assert_eq!(cluster_of(&flags), Ok(None));
}

fn cluster_of(flags: &Flags) -> Result<Option<Cluster>, String> {
    let machine = Machine {
        hostname: "n".into(),
        program_dir: "/usr/bin".into(),
    };
    let settings = resolve(flags, Decoded::default(), &machine);
    settings
        .map(|settings| settings.cluster)
        .map_err(|error| error.to_string())
}
