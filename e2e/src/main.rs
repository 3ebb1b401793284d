//! `hanok-lab`: takes labs up and down, makes the images, runs the benches and the conformance suite.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "the command's output")]

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use hanok_e2e::lab::{Lab, NODES};
use hanok_e2e::{bench, conformance, golden, image, oci_conformance};

/// A control plane, a registry and nodes in network namespaces of this machine.
#[derive(Debug, Parser)]
#[command(name = "hanok-lab")]
struct Cli {
    /// Number of the lab, 0 to 255; labs of different numbers live side by side [default: 0; bench and conformance take a free one]
    #[arg(long, env = "HANOK_LAB")]
    lab: Option<u8>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts the lab and its nodes; writes target/cluster/*.kubeconfig.
    Up {
        /// Nodes to start.
        #[arg(long, value_delimiter = ',', default_values_t = NODES.map(str::to_owned))]
        nodes: Vec<String>,
        /// Only n1, as a virtual machine with nothing but cgroup v2.
        #[arg(long, conflicts_with = "nodes")]
        machine: bool,
    },
    /// Stops exactly what `up` started, and leaves nothing.
    Down,
    /// Says what runs.
    Status,
    /// Makes the images as OCI layouts and prints where they are.
    Images {
        /// Only these.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Push them to this registry (host:port, plain HTTP) as well.
        #[arg(long)]
        push: Option<String>,
    },
    /// Takes the figures on a lab of its own.
    Bench(bench::Options),
    /// Runs Kubernetes' conformance suite on a lab of its own; verdicts in target/conformance.
    Conformance(conformance::Options),
    /// Runs the OCI validation programs against `hanok oci` and runc.
    OciConformance(oci_conformance::Options),
    /// A part of oci-conformance.
    #[command(hide = true)]
    OciConformanceWorker {
        /// What to do.
        task: std::path::PathBuf,
    },
    /// Checks what a hanok node says of many pods against what a kubelet says of them, e2e/golden/kubelet.txt.
    Golden(golden::Options),
    /// Starts, stops or kills the agent of a node.
    Node {
        /// n1, n2, or peer for the kubelet node.
        name: String,
        /// start, stop or kill.
        action: String,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hanok-lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let lab = match (cli.lab, &cli.command) {
        (None, Command::Bench(_) | Command::Conformance(_) | Command::Golden(_)) => {
            Lab::from_env(1)?
        }
        (number, _) => Lab::new(number.unwrap_or(0)),
    };
    match cli.command {
        Command::Up { nodes, machine } => up(&lab, &nodes, machine),
        Command::Down => lab.down(),
        Command::Status => {
            lab.status().iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        Command::Images { only, push } => images(&only, push.as_deref()),
        Command::Conformance(options) => conformance::run(&lab, &options),
        Command::Bench(options) => bench::run(&lab, &options),
        Command::OciConformance(options) => {
            let report = oci_conformance::run(&options)?;
            print!("{report}");
            match report.is_good() {
                true => Ok(()),
                false => bail!("programs fail that should not"),
            }
        }
        Command::OciConformanceWorker { task } => oci_conformance::inside::work(&task),
        Command::Golden(options) => golden::run(&lab, &options),
        Command::Node { name, action } if name == "peer" => match action.as_str() {
            "start" => lab.peer().start(),
            "stop" => lab.peer().stop(),
            other => bail!("unknown action {other:?}; start or stop"),
        },
        Command::Node { name, action } => {
            let node = lab.node(&name);
            match action.as_str() {
                "start" => node.start(),
                "stop" => node.stop(),
                "kill" => node.kill(),
                other => bail!("unknown action {other:?}; start, stop or kill"),
            }
        }
    }
}

fn up(lab: &Lab, nodes: &[String], machine: bool) -> Result<()> {
    lab.up()?;
    if machine {
        lab.boot_machine()?;
        lab.start_nodes(&lab.nodes())?;
    } else {
        let names = nodes.iter().map(String::as_str);
        lab.start_nodes(&names.filter(|n| !n.is_empty()).collect::<Vec<_>>())?;
    }
    println!("export KUBECONFIG={}", lab.kubeconfig("admin").display());
    Ok(())
}

fn images(only: &[String], push: Option<&str>) -> Result<()> {
    for (recipe, layout) in image::build(only)? {
        println!("{} {}", recipe.name, layout.dir().display());
        if let Some(registry) = push {
            recipe.push(&layout, registry)?;
        }
    }
    Ok(())
}
