//! A node of the lab that is a virtual machine with nothing but cgroup v2: QEMU, made by `e2e/v2/node.sh`.
//!
//! The node's network namespace is the machine's cable: it has the lab's link and the machine's tap device on one
//! bridge, and the node's address is the machine's. Files that the agent reads have the paths in the machine that they
//! have here. What happens to the agent is asked for at a port of the machine, a word a connection (`e2e/v2/control.sh`).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Node;
use crate::process::{Spawn, patience, run, wait_for};
use crate::{network, paths};

/// Where the machine is asked for something.
const PORT: u16 = 99;

/// How long one attempt to reach it may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long it may take to answer. It also waits for the agent's end.
const ANSWER: Duration = Duration::from_secs(10);

/// How long it may take to boot.
const BOOT: Duration = Duration::from_secs(20);

/// The bridge between the lab's link and the machine.
const CABLE: &str = "link add cable type bridge forward_delay 0\nlink set cable up\naddr flush dev eth0\n\
    link set eth0 master cable\ntuntap add dev machine mode tap\nlink set machine master cable\nlink set machine up\n";

/// Boots the machine of a node and waits until it answers.
pub(super) fn boot(node: &Node) -> Result<()> {
    let dir = node.dir().join("machine");
    for dir in [dir.clone(), node.dir().join("cni"), node.manifests()] {
        fs::create_dir_all(dir)?;
    }
    // At the top, as a kubelet has them.
    node.configure("/")?;
    let address = node.address();
    let files = [
        node.lab().pki().join("ca.crt"),
        node.kubeconfig(),
        super::registry::hosts_directory(node.lab()),
        node.dir().join("config.yaml"),
        node.dir().join("cni"),
        node.manifests(),
    ];
    let list: String = files.iter().map(|f| format!("{}\n", f.display())).collect();
    fs::write(dir.join("files"), list)?;
    let flags: String = node.flags().iter().map(|f| format!("{f}\n")).collect();
    fs::write(dir.join("flags"), flags)?;
    let network = format!("{address} {}\n", node.lab().control_plane_address());
    fs::write(dir.join("network"), network)?;
    let script = paths::workspace().join("e2e/v2/node.sh");
    let hanok = paths::hanok()?;
    run(
        &script,
        &["make", &dir.to_string_lossy(), &hanok.to_string_lossy()],
    )?;
    network::ip_batch(&node.netns(), CABLE)?;
    node.lab().processes().spawn(&Spawn {
        name: &record(node),
        netns: Some(&node.netns()),
        program: script,
        args: vec!["run".into(), dir.display().to_string()],
        env: Vec::new(),
    })?;
    let answers = wait_for("the machine", BOOT, || {
        ensure_alive(node).map_or_else(
            |dead| Ok(Err(dead)),
            |()| ask(node, "running").map(|_| Ok(())),
        )
    });
    answers.with_context(|| console(node))?
}

/// Fails when the machine has ended or does not answer, with its console.
pub(super) fn check(node: &Node) -> Result<()> {
    ensure_alive(node)?;
    ask(node, "running")
        .map(drop)
        .with_context(|| console(node))
}

/// Fails when the machine has ended, with its console.
fn ensure_alive(node: &Node) -> Result<()> {
    let alive = node.lab().processes().running(&record(node)).is_some();
    ensure!(alive, "the machine has ended; {}", console(node));
    Ok(())
}

/// Asks for something and returns the answer's lines.
pub(super) fn ask(node: &Node, word: &str) -> Result<Vec<String>> {
    let address = format!("{}:{PORT}", node.address()).parse()?;
    let limit = patience(ANSWER);
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)
        .with_context(|| format!("connect to the machine at {address}"))?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(format!("{word}\n").as_bytes())?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .with_context(|| format!("ask the machine for {word:?}"))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    ensure!(
        lines.pop().as_deref() == Some("done"),
        "the machine answers {word:?} with {text:?}"
    );
    Ok(lines)
}

/// The end of what the machine has said.
fn console(node: &Node) -> String {
    let said = node.lab().processes().log_tail(&record(node));
    let text = fs::read(node.dir().join("machine/console")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(40)..].join("\n");
    format!("the machine says:\n{said}\nand on its console:\n{last}\n")
}

/// Whether the lab's node is a machine.
pub(super) fn is_one(dir: &Path) -> bool {
    dir.join("machine").exists()
}

/// The machine's process; the agent writes its log there as well.
pub(super) fn record(node: &Node) -> String {
    format!("machine-{}", node.name())
}
