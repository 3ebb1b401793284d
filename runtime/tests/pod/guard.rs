//! What the machine keeps from containers and from its own users.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use hanok_runtime::api::{Mount, NamespaceMode, Propagation, RuntimeService};

use crate::copied_program::copy_program;
use crate::rig::Rig;

#[tokio::test(flavor = "multi_thread")]
async fn root_a_set_user_id_program_gains_nothing_without_privilege_escalation() {
    let rig = Rig::new("suid").await;
    let shared = rig.path("shared");
    fs::create_dir(&shared).unwrap();
    // This applet of busybox begins by saying whether it is root.
    let program = shared.join("passwd");
    copy_program(Path::new("/bin/busybox"), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "/shared/passwd nobody-of-this-name 2>&1");
    config.mounts = vec![Mount {
        container_path: "/shared".into(),
        host_path: shared,
        readonly: true,
        recursive_readonly: false,
        propagation: Propagation::Private,
        sub_path: String::new(),
        selinux_relabel: false,
    }];
    config.security.run_as_user = Some(1000);
    let (_, text) = rig.output(&sandbox, config.clone()).await;
    assert!(text.contains("unknown user"), "{text}");
    config.security.no_new_privs = true;
    let (_, text) = rig.output(&sandbox, config).await;
    assert!(text.contains("must be suid"), "{text}");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_control_sockets_are_roots_and_out_of_reach_of_a_pod_on_the_nodes_network() {
    let rig = Rig::new("sockets").await;
    let mut config = rig.sandbox_config();
    config.network = NamespaceMode::Node;
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap().id;
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let shims = table.lines().filter(|line| line.contains("hanok"));
    assert_eq!(shims.filter(|line| line.contains(" @")).count(), 0);
    let sockets = sockets_below(&rig.path("run"));
    assert!(!sockets.is_empty(), "the shim listens somewhere");
    for path in &sockets {
        let socket = fs::metadata(path).unwrap();
        let directory = fs::metadata(path.parent().unwrap()).unwrap();
        assert_eq!((socket.uid(), directory.uid()), (0, 0), "{path:?}");
        assert_eq!(directory.mode() & 0o077, 0, "{path:?}");
    }
    // Of the same network, but of another root: the name leads nowhere.
    for path in sockets {
        let script = format!("ls {} 2>&1", path.display());
        let (_, text) = rig.output(&sandbox, rig.script("c", &script)).await;
        assert!(text.contains("No such file"), "{text}");
    }
    rig.finish().await;
}

fn sockets_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_socket() {
            found.push(entry.path());
        } else if kind.is_dir() {
            found.extend(sockets_below(&entry.path()));
        }
    }
    found
}

/// Nobody but root gets below the directories of the runtime, wherever they are: no file of a user's image is
/// read, and no set-user-id program of one is run.
pub(crate) fn assert_closed_to_users(base: &Path) {
    fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
    let found = Command::new("find")
        .arg(base)
        .args(["-mindepth", "2"])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    for private in ["run", "root", "cni", "ipam"] {
        let below = base.join(private);
        assert!(below.is_dir(), "{private}");
        let seen = found
            .lines()
            .find(|line| Path::new(line).starts_with(&below));
        assert_eq!(seen, None, "a user sees it");
    }
    let open = Command::new("find")
        .args(["run", "cni", "ipam"].map(|private| base.join(private)))
        .args(["-perm", "-0002", "-not", "-type", "l"])
        .output()
        .unwrap();
    let open = String::from_utf8(open.stdout).unwrap();
    assert_eq!(open, "", "anybody could write it");
}
