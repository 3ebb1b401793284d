//! `hanok oci`: an OCI runtime on the command line, called as runc is: `create`, `start`, `state`, `kill`, `delete`,
//! `run`, `exec`, `ps`, `list`, `pause`, `resume`, `update`, `events`, `features`. Also
//! `hanok-oci`, a program of its own.
//!
//! Runs before anything else of the program does: it must have one thread, and the limits that it was started with.

mod args;
mod list;
mod log;
mod update;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use hanok_runtime::oci::{CreateOptions, ExecOptions, RunOptions, Runtime, features};

use args::{Command, CreateArgs, ExecArgs, Format};
use log::Log;

use crate::complaint;

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
    /// Let systemd make the cgroup; cgroupsPath is slice:prefix:name then.
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

/// Runs a command. The exit code is that of the container's process where one is waited for.
pub fn run(options: Options) -> ExitCode {
    let failed = match options.command {
        Command::Exec(_) => EXEC_FAILED,
        _ => 1,
    };
    let log = Log::new(options.log.as_deref().map(log_file), options.log_format);
    match execute(options, &log) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            log.error(&complaint::chain(&error));
            ExitCode::from(failed)
        }
    }
}

fn execute(options: Options, log: &Log) -> Result<u8> {
    let mut runtime = Runtime::new(absolute(&options.root)?, shim(options.shim)?);
    if options.systemd_cgroup {
        runtime = runtime.by_systemd();
    }
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
            return Ok(exit_code(code));
        }
        Command::Exec(exec) => {
            let id = exec.id.clone();
            let code = runtime.exec(&id, &exec_options(*exec)?)?;
            return Ok(exit_code(code));
        }
        Command::Ps {
            format,
            id,
            options,
        } => list_processes(&runtime, &id, format, &options)?,
        Command::List { format, quiet } => list_containers(&runtime, format, quiet, log)?,
        Command::Pause { id } => runtime.pause(&id)?,
        Command::Resume { id } => runtime.resume(&id)?,
        Command::Update { limits, id } => runtime.update(&id, &limits.document()?)?,
        Command::Events {
            stats: true, id, ..
        } => say(&format!("{}\n", runtime.usage(&id)?))?,
        Command::Events { interval, id, .. } => {
            // A reader that has gone is the end of it.
            runtime.watch(&id, interval, |event| say(&format!("{event}\n")).is_ok())?;
        }
        Command::Features => print(&features())?,
        Command::Checkpoint(_) | Command::Restore(_) => {
            bail!("containers cannot be checkpointed or restored")
        }
    }
    Ok(0)
}

fn exit_code(of_process: i32) -> u8 {
    u8::try_from(of_process).unwrap_or(u8::MAX)
}

fn list_processes(runtime: &Runtime, id: &str, format: Format, options: &[String]) -> Result<()> {
    let pids = runtime.processes(id)?;
    match format {
        Format::Json => print(&serde_json::json!(pids)),
        Format::Table => say(&list::processes(&pids, options)?),
    }
}

/// With a warning for each container whose record cannot be read.
fn list_containers(runtime: &Runtime, format: Format, quiet: bool, log: &Log) -> Result<()> {
    let (records, broken) = runtime.list()?;
    for error in broken {
        log.warning(&complaint::chain(&error.into()));
    }
    let ids = records.iter().map(|record| format!("{}\n", record.id));
    match format {
        _ if quiet => say(&ids.collect::<String>()),
        Format::Json => print(&list::containers(&records)),
        Format::Table => say(&list::table(&records)),
    }
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
        ignore_paused: given.ignore_paused,
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

/// One that cannot be made absolute cannot be opened either, and says so then.
fn log_file(given: &Path) -> PathBuf {
    absolute(given).unwrap_or_else(|_| given.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_file_stays_where_the_caller_was() {
        let before = std::env::current_dir().unwrap();
        assert_eq!(log_file(Path::new("log.json")), before.join("log.json"));
        assert_eq!(log_file(Path::new("/l/log.json")), Path::new("/l/log.json"));
        assert_eq!(log_file(Path::new("")), Path::new(""));
    }
}
