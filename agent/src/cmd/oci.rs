//! `hanok oci`: an OCI runtime on the command line, called as runc is: `create`, `start`, `state`, `kill`, `delete`,
//! `run`, `exec`, `ps`, `features`. Also under the name `hanok-oci`, for callers that know a program and no
//! subcommand.
//!
//! Runs before anything else of the program does: it must have one thread, and the limits that it was started with.

mod log;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use hanok_runtime::oci::{CreateOptions, ExecOptions, RunOptions, Runtime, features};

use log::Log;

/// Exit code when `exec` could not run the process, as runc's.
const EXEC_FAILED: u8 = 255;

/// Options of `hanok oci`, before its command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where containers are recorded.
    #[arg(long, default_value = "/run/hanok/oci", global = true)]
    root: PathBuf,
    /// A file that errors and warnings are appended to.
    #[arg(long, global = true)]
    log: Option<PathBuf>,
    /// How they are written there.
    #[arg(long, value_enum, default_value = "text", global = true)]
    log_format: log::Format,
    /// Accepted as runc's; there is nothing more to tell.
    #[arg(long, global = true)]
    debug: bool,
    /// Refused: cgroups are made directly, without systemd.
    #[arg(long, global = true)]
    systemd_cgroup: bool,
    /// Accepted as runc's; it has no effect.
    #[arg(long, default_value = "auto", global = true)]
    rootless: String,
    /// The hanok-shim program; beside this one when it is not given.
    #[arg(long, global = true)]
    shim: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a container from a bundle; its program waits to be started.
    Create {
        #[command(flatten)]
        create: CreateArgs,
        /// Its id.
        id: String,
    },
    /// Start the program of a created container.
    Start {
        /// Its id.
        id: String,
    },
    /// Print a container's state.
    State {
        /// Its id.
        id: String,
    },
    /// Send a signal to a container's process.
    Kill {
        /// To all of its processes.
        #[arg(long, short)]
        all: bool,
        /// Its id.
        id: String,
        /// Name or number.
        #[arg(default_value = "TERM", allow_hyphen_values = true)]
        signal: String,
    },
    /// Delete a stopped container.
    Delete {
        /// Also one that runs, by SIGKILL; and one that does not exist is no error.
        #[arg(long, short)]
        force: bool,
        /// Its id.
        id: String,
    },
    /// Create and start a container, wait for its end and delete it.
    Run {
        #[command(flatten)]
        create: CreateArgs,
        /// Return once its program runs.
        #[arg(long, short)]
        detach: bool,
        /// Leave the container when its program has ended.
        #[arg(long)]
        keep: bool,
        /// Accepted as runc's; orphans of the container never become ours.
        #[arg(long)]
        no_subreaper: bool,
        /// Its id.
        id: String,
    },
    /// Run another process in a container.
    Exec(Box<ExecArgs>),
    /// List the processes of a container.
    Ps {
        /// table or json.
        #[arg(long, short, value_enum, default_value = "table")]
        format: PsFormat,
        /// Its id.
        id: String,
        /// Options for ps(1).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Print what this runtime can do.
    Features,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PsFormat {
    Table,
    Json,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// The bundle's directory.
    #[arg(long, short, default_value = ".")]
    bundle: PathBuf,
    /// A unix socket that gets the master side of the terminal.
    #[arg(long)]
    console_socket: Option<PathBuf>,
    /// A file that the process id is written to.
    #[arg(long)]
    pid_file: Option<PathBuf>,
    /// Refused: the root filesystem is always entered by pivot_root.
    #[arg(long)]
    no_pivot: bool,
    /// Refused: the caller's session keyring is never shared.
    #[arg(long)]
    no_new_keyring: bool,
    /// Descriptors from 3 on that the container gets.
    #[arg(long, default_value_t = 0)]
    preserve_fds: u32,
}

#[derive(Debug, clap::Args)]
struct ExecArgs {
    /// A unix socket that gets the master side of the terminal.
    #[arg(long)]
    console_socket: Option<PathBuf>,
    /// Working directory in the container.
    #[arg(long)]
    cwd: Option<String>,
    /// Environment, NAME=value.
    #[arg(long, short)]
    env: Vec<String>,
    /// Give it a terminal.
    #[arg(long, short)]
    tty: bool,
    /// uid[:gid].
    #[arg(long, short)]
    user: Option<String>,
    /// Supplementary groups.
    #[arg(long, short = 'g')]
    additional_gids: Vec<u32>,
    /// A file with the process of the specification.
    #[arg(long, short)]
    process: Option<PathBuf>,
    /// Return once it runs.
    #[arg(long, short)]
    detach: bool,
    /// A file that the process id is written to.
    #[arg(long)]
    pid_file: Option<PathBuf>,
    /// SELinux label.
    #[arg(long)]
    process_label: Option<String>,
    /// AppArmor profile.
    #[arg(long)]
    apparmor: Option<String>,
    /// Set no_new_privs.
    #[arg(long)]
    no_new_privs: bool,
    /// Capabilities to add.
    #[arg(long, short)]
    cap: Vec<String>,
    /// Descriptors from 3 on that it gets.
    #[arg(long, default_value_t = 0)]
    preserve_fds: u32,
    /// Accepted as runc's; containers cannot be paused here.
    #[arg(long)]
    ignore_paused: bool,
    /// The container's id.
    id: String,
    /// The command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs a command. The exit code is that of the container's process where one is waited for.
pub fn run(options: Options) -> ExitCode {
    let failed = match options.command {
        Command::Exec(_) => EXEC_FAILED,
        _ => 1,
    };
    let log = Log::new(options.log.clone(), options.log_format);
    match execute(options, &log) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            log.error(&format!("{error:#}"));
            ExitCode::from(failed)
        }
    }
}

fn execute(options: Options, log: &Log) -> Result<u8> {
    if options.systemd_cgroup {
        bail!("--systemd-cgroup is not supported: cgroups are made directly");
    }
    let runtime = Runtime::new(absolute(&options.root)?, shim(options.shim)?);
    let warn = |warnings: Vec<String>| warnings.iter().for_each(|warning| log.warning(warning));
    match options.command {
        Command::Create { create, id } => runtime.create(&id, &create_options(create)?)?,
        Command::Start { id } => warn(runtime.start(&id)?),
        Command::State { id } => print(&runtime.state(&id)?.document())?,
        Command::Kill { all, id, signal } => runtime.kill(&id, &signal, all)?,
        Command::Delete { force, id } => warn(runtime.delete(&id, force)?),
        Command::Run {
            create,
            detach,
            keep,
            id,
            ..
        } => {
            let create = create_options(create)?;
            let run = RunOptions {
                create,
                detach,
                keep,
            };
            let (code, warnings) = runtime.run(&id, &run)?;
            warn(warnings);
            return Ok(u8::try_from(code).unwrap_or(u8::MAX));
        }
        Command::Exec(exec) => {
            let id = exec.id.clone();
            let code = runtime.exec(&id, &exec_options(*exec)?)?;
            return Ok(u8::try_from(code).unwrap_or(u8::MAX));
        }
        Command::Ps {
            format,
            id,
            options,
        } => {
            let pids = runtime.processes(&id)?;
            match format {
                PsFormat::Json => print(&serde_json::json!(pids))?,
                PsFormat::Table => table(&pids, &options)?,
            }
        }
        Command::Features => print(&features())?,
    }
    Ok(0)
}

fn create_options(given: CreateArgs) -> Result<CreateOptions> {
    if given.no_pivot {
        bail!("--no-pivot is not supported: a container could leave its root");
    }
    if given.no_new_keyring {
        bail!("--no-new-keyring is not supported: keys of the caller would be the container's");
    }
    check_preserved(given.preserve_fds)?;
    Ok(CreateOptions {
        bundle: given.bundle,
        console_socket: given.console_socket.as_deref().map(absolute).transpose()?,
        pid_file: given.pid_file.as_deref().map(absolute).transpose()?,
        preserve_fds: given.preserve_fds,
    })
}

fn exec_options(given: ExecArgs) -> Result<ExecOptions> {
    check_preserved(given.preserve_fds)?;
    Ok(ExecOptions {
        process: given.process,
        args: given.args,
        env: given.env,
        cwd: given.cwd,
        user: given.user,
        additional_gids: given.additional_gids,
        capabilities: given.cap,
        no_new_privs: given.no_new_privs,
        apparmor: given.apparmor,
        selinux: given.process_label,
        tty: given.tty,
        detach: given.detach,
        console_socket: given.console_socket.as_deref().map(absolute).transpose()?,
        pid_file: given.pid_file.as_deref().map(absolute).transpose()?,
        preserve_fds: given.preserve_fds,
    })
}

/// Before anything is opened: a number that is free would become a descriptor of ours, and the container's.
fn check_preserved(count: u32) -> Result<()> {
    for fd in 3..count.saturating_add(3) {
        let open = std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
        ensure!(open, "--preserve-fds {count}: descriptor {fd} is not open");
    }
    Ok(())
}

/// The working directory changes on the way.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot make {} absolute", path.display()))
}

fn shim(given: Option<PathBuf>) -> Result<PathBuf> {
    match given {
        Some(path) => absolute(&path),
        None => {
            let own = std::env::current_exe().context("cannot find this program")?;
            Ok(own.with_file_name("hanok-shim"))
        }
    }
}

fn print(document: &serde_json::Value) -> Result<()> {
    say(&format!("{document:#}\n"))
}

/// Standard output may be closed early.
fn say(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.context("cannot write to standard output")
}

/// The lines of ps(1) about these processes, and its heading.
fn table(pids: &[i32], options: &[String]) -> Result<()> {
    let words: Vec<&str> = match options.is_empty() {
        true => vec!["-ef"],
        false => options.iter().map(String::as_str).collect(),
    };
    let output = Program::new("ps")
        .args(words)
        .output()
        .context("cannot run ps")?;
    if !output.status.success() {
        bail!(
            "ps failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let column = heading.split_whitespace().position(|name| name == "PID");
    let column = column.context("the output of ps has no column PID")?;
    let mut table = format!("{heading}\n");
    for line in lines {
        let pid = line
            .split_whitespace()
            .nth(column)
            .and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid| pids.contains(&pid)) {
            table += line;
            table.push('\n');
        }
    }
    say(&table)
}
