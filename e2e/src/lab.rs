//! A lab: a control plane, a registry and nodes, each in a network namespace of its own, on one machine.
//!
//! ```text
//!  namespace hanok-labN-cp   bridge lab0 172.30.N.1   etcd, API server, controller manager, scheduler, registry
//!                             ├─ n1    eth0 172.30.N.11 in hanok-labN-n1    hanok agent
//!                             ├─ n2    eth0 172.30.N.12 in hanok-labN-n2    hanok agent
//!                             ├─ peer  eth0 172.30.N.13 in hanok-labN-peer  kubelet and containerd
//!                             └─ host  hanok-labN 172.30.N.254 in the host's namespace, for kubectl
//! ```
//! Everything is named after the lab's number, so that labs live side by side. What lasts is below one
//! directory, `target/cluster` for lab 0 and `target/cluster-N` for the others; what a node has on a tmpfs is
//! below `/run/hanok-labN`.
//!
//! `down` needs no memory of `up`: it finds what there is by the names, so that a half-made lab and one whose
//! maker was killed come down as well.

mod audit;
pub(crate) mod cgroup;
mod control_plane;
mod down;
mod machine;
mod node;
mod peer;
mod registry;
mod topology;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

pub use audit::{AuditLog, Request};
pub use cgroup::Hierarchy;
pub use node::Node;
pub use peer::Peer;

use crate::process::{Processes, run, wait_for};
use crate::{image, paths};

/// The names of the nodes that run `hanok agent`.
pub const NODES: [&str; 2] = ["n1", "n2"];

/// The node that may be a machine of its own; it is the only one of its lab then.
const MACHINE: &str = "n1";

/// One lab, running or not.
#[derive(Debug, Clone)]
pub struct Lab {
    number: u8,
    dir: PathBuf,
    processes: Processes,
}

impl Lab {
    /// The lab of this number.
    pub fn new(number: u8) -> Self {
        let name = match number {
            0 => "cluster".to_owned(),
            n => format!("cluster-{n}"),
        };
        let dir = paths::target().join(name);
        let processes = Processes::new(&dir);
        Self {
            number,
            dir,
            processes,
        }
    }

    /// The lab that `HANOK_LAB` names, or else the first from this number on that is nobody else's.
    ///
    /// # Errors
    /// When the variable is not a number below 256, or every lab is somebody's.
    pub fn from_env(first: u8) -> Result<Self> {
        match std::env::var("HANOK_LAB") {
            Ok(text) => Ok(Self::new(
                text.parse()
                    .with_context(|| format!("HANOK_LAB={text:?}"))?,
            )),
            Err(_) => {
                let mut labs = (first..=u8::MAX).map(Self::new);
                labs.find(Self::is_free).context("every lab is in use")
            }
        }
    }

    /// Begins every name that the lab gives on the machine.
    pub fn prefix(&self) -> String {
        format!("hanok-lab{}", self.number)
    }

    /// Where everything of the lab is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the lab has on a tmpfs, as a node has it: short paths, for sockets, that die with the boot.
    pub fn run_dir(&self) -> PathBuf {
        Path::new("/run").join(self.prefix())
    }

    /// Its processes.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// The network namespace of a machine: `cp`, `n1`, `n2` or `peer`.
    pub fn netns(&self, machine: &str) -> String {
        format!("{}-{machine}", self.prefix())
    }

    /// The address of a host number in the lab's subnet.
    pub fn address(&self, host: u8) -> String {
        format!("172.30.{}.{host}", self.number)
    }

    /// The control plane's address.
    pub fn control_plane_address(&self) -> String {
        self.address(1)
    }

    /// The registry as image references name it.
    pub fn registry(&self) -> String {
        format!("{}:5000", self.control_plane_address())
    }

    /// The API server's URL.
    pub fn server(&self) -> String {
        format!("https://{}:6443", self.control_plane_address())
    }

    /// The kubeconfig of `admin`, `bootstrap`, `node-n1` ...
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.kubeconfig"))
    }

    /// Directory of certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// Names of the nodes that run `hanok agent` here.
    pub fn nodes(&self) -> Vec<&'static str> {
        match self.has_machine() {
            true => vec![MACHINE],
            false => NODES.to_vec(),
        }
    }

    /// Whether the only node is a virtual machine with nothing but cgroup v2.
    pub fn has_machine(&self) -> bool {
        machine::is_one(&self.node(MACHINE).dir())
    }

    /// Boots the machine that is to be the only node, without its agent.
    ///
    /// # Errors
    /// When it cannot be made, or does not answer in time.
    pub fn boot_machine(&self) -> Result<()> {
        machine::boot(&self.node(MACHINE))
    }

    /// Whether the machine, if there is one, answers.
    ///
    /// # Errors
    /// When it does not, with its console.
    pub fn check_machine(&self) -> Result<()> {
        match self.has_machine() {
            true => machine::check(&self.node(MACHINE)),
            false => Ok(()),
        }
    }

    /// A node of the lab that runs `hanok agent`.
    pub fn node(&self, name: &str) -> Node {
        Node::new(self, name)
    }

    /// The node that hanok is measured against.
    pub fn peer(&self) -> Peer {
        Peer::new(self)
    }

    /// What the API server has been asked.
    pub fn audit(&self) -> AuditLog {
        AuditLog::new(self.dir.join("audit.log"))
    }

    /// Starts control plane and registry and fills the registry; takes down first what is left of an earlier lab.
    ///
    /// # Errors
    /// When a part does not come up; what was started stays, for its logs, until `down`.
    pub fn up(&self) -> Result<()> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "a lab needs root: it makes network namespaces"
        );
        self.down()?;
        self.claim()?;
        fs::create_dir_all(&self.dir)?;
        cgroup::remember(self)?;
        topology::create(self)?;
        control_plane::create_identities(self)?;
        registry::start(self)?;
        control_plane::start(self)?;
        image::publish(&self.registry())?;
        Ok(())
    }

    /// Stops exactly what `up` and the nodes started and removes every trace but the logs' copies in `target`.
    ///
    /// # Errors
    /// With everything that could not be removed.
    pub fn down(&self) -> Result<()> {
        self.check_owner()?;
        down::down(self)
    }

    /// Names the lab's directory as the one that its number belongs to, for whoever else has a copy of this workspace.
    fn claim(&self) -> Result<()> {
        fs::create_dir_all(self.run_dir())?;
        match fs::File::options()
            .write(true)
            .create_new(true)
            .open(self.owner_file())
        {
            Ok(mut file) => Ok(write!(file, "{}", self.dir.display())?),
            Err(_) => self.check_owner(),
        }
    }

    /// Whether nobody else uses the number: it is unused, or belongs to this copy of the workspace.
    fn is_free(&self) -> bool {
        let used =
            Path::new("/run/netns").join(self.netns("cp")).exists() || self.run_dir().exists();
        !used || (self.owner_file().exists() && self.check_owner().is_ok())
    }

    fn check_owner(&self) -> Result<()> {
        let owner = fs::read_to_string(self.owner_file()).unwrap_or_default();
        ensure!(
            owner.is_empty() || Path::new(&owner) == self.dir,
            "{} belongs to {owner}; choose another number by HANOK_LAB",
            self.prefix()
        );
        Ok(())
    }

    fn owner_file(&self) -> PathBuf {
        self.run_dir().join("owner")
    }

    /// Starts the named nodes at once, waits until they are ready and makes their pods reachable.
    ///
    /// # Errors
    /// When one does not become ready.
    pub fn start_nodes(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.node(name).start()?;
        }
        for name in names {
            self.node(name).wait_ready(Duration::from_secs(60))?;
        }
        self.route_pods()
    }

    /// Stops the API server, to start it again later.
    ///
    /// # Errors
    /// When it survives SIGKILL.
    pub fn stop_api_server(&self) -> Result<()> {
        control_plane::stop_api_server(self)
    }

    /// Starts the API server again and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start_api_server(&self) -> Result<()> {
        control_plane::restart_api_server(self)
    }

    /// Starts the API server again when a story has stopped it, and lets the registry go on.
    ///
    /// # Errors
    /// When one of them does not come back.
    pub fn mend(&self) -> Result<()> {
        self.resume_registry()?;
        if control_plane::api_server_runs(self) {
            Ok(())
        } else {
            self.start_api_server()
        }
    }

    /// Lets the registry answer nothing, as one behind a broken link; connections stay open.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause_registry(&self) -> Result<()> {
        registry::signal(self, Signal::STOP)
    }

    /// Lets the registry answer again.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume_registry(&self) -> Result<()> {
        registry::signal(self, Signal::CONT)
    }

    /// Runs kubectl as admin and returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let config = format!("--kubeconfig={}", self.kubeconfig("admin").display());
        let mut all = vec![config.as_str()];
        all.extend_from_slice(args);
        run(paths::go_program("kubectl")?, &all)
    }

    /// Tells control plane and nodes the way to every node's pods.
    ///
    /// # Errors
    /// When a node gets no podCIDR within 20 s, or a route cannot be set.
    pub fn route_pods(&self) -> Result<()> {
        let format = r#"jsonpath={range .items[*]}{.metadata.name} {.spec.podCIDR}{"\n"}{end}"#;
        let nodes = wait_for("podCIDRs", Duration::from_secs(20), || {
            let text = self.kubectl(&["get", "nodes", "-o", format])?;
            let pairs = text.lines().map(|line| {
                let (name, cidr) = line.split_once(' ').context("a line without a blank")?;
                ensure!(!cidr.is_empty(), "{name} has no podCIDR");
                Ok((name.to_owned(), cidr.to_owned()))
            });
            pairs.collect::<Result<Vec<_>>>()
        })?;
        topology::route(self, &nodes)
    }

    /// What runs, a line each.
    pub fn status(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .processes
            .list()
            .iter()
            .map(|p| {
                let state = if p.is_alive() { "running" } else { "stopped" };
                format!("{:<26} {state:<8} {:>7}", p.name, p.pid)
            })
            .collect();
        lines.sort();
        lines
    }
}
