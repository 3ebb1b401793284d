//! The commands of `hanok oci` and their options: runc's.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::update::UpdateArgs;

// Whoever calls one command waits for the options of no other.
#[derive(Debug, clap::Subcommand)]
#[command(defer = true)]
pub(super) enum Command {
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
        format: Format,
        /// Its id.
        id: String,
        /// Options for ps(1).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// List the containers.
    List {
        /// table or json.
        #[arg(long, short, value_enum, default_value = "table")]
        format: Format,
        /// Ids only.
        #[arg(long, short)]
        quiet: bool,
    },
    /// Let all processes of a container stand still.
    Pause {
        /// Its id.
        id: String,
    },
    /// Let the processes of a paused container go on.
    Resume {
        /// Its id.
        id: String,
    },
    /// Change limits of a container.
    Update {
        #[command(flatten)]
        limits: Box<UpdateArgs>,
        /// Its id.
        id: String,
    },
    /// Print what a container uses, again and again until it ends, and when it ran out of memory.
    Events {
        /// How often, such as 5s or 100ms.
        #[arg(long, default_value = "5s", value_parser = interval)]
        interval: Duration,
        /// Print it once.
        #[arg(long)]
        stats: bool,
        /// Its id.
        id: String,
    },
    /// Print what this runtime can do.
    Features,
    /// Refused, in words that reach the caller's log.
    #[command(hide = true)]
    Checkpoint(Ignored),
    /// Refused likewise.
    #[command(hide = true)]
    Restore(Ignored),
}

/// Words that nobody reads.
#[derive(Debug, clap::Args)]
pub(super) struct Ignored {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
}

#[derive(Debug, clap::Args)]
pub(super) struct CreateArgs {
    /// The bundle's directory.
    #[arg(long, short, default_value = ".")]
    pub(super) bundle: PathBuf,
    /// A unix socket that gets the master side of the terminal.
    #[arg(long)]
    pub(super) console_socket: Option<PathBuf>,
    /// A file that the process id is written to.
    #[arg(long)]
    pub(super) pid_file: Option<PathBuf>,
    /// Refused: the root filesystem is always entered by pivot_root.
    #[arg(long)]
    pub(super) no_pivot: bool,
    /// Refused: the caller's session keyring is never shared.
    #[arg(long)]
    pub(super) no_new_keyring: bool,
    /// Descriptors from 3 on that the container gets.
    #[arg(long, default_value_t = 0)]
    pub(super) preserve_fds: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExecArgs {
    /// A unix socket that gets the master side of the terminal.
    #[arg(long)]
    pub(super) console_socket: Option<PathBuf>,
    /// Working directory in the container.
    #[arg(long)]
    pub(super) cwd: Option<String>,
    /// Environment, NAME=value.
    #[arg(long, short)]
    pub(super) env: Vec<String>,
    /// Give it a terminal.
    #[arg(long, short)]
    pub(super) tty: bool,
    /// uid[:gid].
    #[arg(long, short)]
    pub(super) user: Option<String>,
    /// Supplementary groups.
    #[arg(long, short = 'g')]
    pub(super) additional_gids: Vec<u32>,
    /// A file with the process of the specification.
    #[arg(long, short)]
    pub(super) process: Option<PathBuf>,
    /// Return once it runs.
    #[arg(long, short)]
    pub(super) detach: bool,
    /// A file that the process id is written to.
    #[arg(long)]
    pub(super) pid_file: Option<PathBuf>,
    /// SELinux label.
    #[arg(long)]
    pub(super) process_label: Option<String>,
    /// AppArmor profile.
    #[arg(long)]
    pub(super) apparmor: Option<String>,
    /// Set no_new_privs.
    #[arg(long)]
    pub(super) no_new_privs: bool,
    /// Capabilities to add.
    #[arg(long, short)]
    pub(super) cap: Vec<String>,
    /// Descriptors from 3 on that it gets.
    #[arg(long, default_value_t = 0)]
    pub(super) preserve_fds: u32,
    /// Also in a paused container; it begins when that goes on.
    #[arg(long)]
    pub(super) ignore_paused: bool,
    /// The container's id.
    pub(super) id: String,
    /// The command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) args: Vec<String>,
}

/// Words such as 5s, 100ms and 1m.
fn interval(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let count: u64 = digits.parse().context("not a number with s, ms or m")?;
    let interval = match &text[digits.len()..] {
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count.saturating_mul(60)),
        _ => bail!("not a number with s, ms or m"),
    };
    ensure!(!interval.is_zero(), "it has to be longer than nothing");
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Options;
    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// As containerd's shim and podman's conmon write them.
    #[test]
    fn lines_that_callers_of_runc_write_are_understood() {
        let global = "--root /r --log /r/log.json --log-format json";
        for line in [
            "create --bundle /b --pid-file /b/init.pid --console-socket /s box",
            "create --bundle /b --pid-file /b/init.pid --preserve-fds 2 box",
            "create --bundle /b --pid-file /p --no-pivot --no-new-keyring box",
            "start box",
            "state box",
            "kill --all box 9",
            "kill box SIGTERM",
            "delete --force box",
            "exec --process /p.json --console-socket /s --detach --pid-file /p box",
            "exec --pid-file /p --process /p.json -d --preserve-fds 1 box",
            "ps --format json box",
            "list --format=json",
            "list -q",
            "pause box",
            "resume box",
            "update --resources - box",
            "update --resources=/r.json box",
            "update --memory -1 --cpu-quota -1 --pids-limit 7 --cpu-share 2 box",
            "events --stats box",
            "events --interval 1s box",
            "features",
            "checkpoint --image-path /i --work-path /w --leave-running box",
            "restore --image-path /i --bundle /b box",
        ] {
            let words = format!("oci {global} {line}");
            if let Err(error) = Line::try_parse_from(words.split(' ')) {
                panic!("{line}: {error}");
            }
        }
        for line in ["update", "events --interval 0s box", "box"] {
            let words = format!("oci {global} {line}");
            assert!(Line::try_parse_from(words.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn an_interval_is_a_number_and_a_unit() {
        assert_eq!(interval("5s").unwrap(), Duration::from_secs(5));
        assert_eq!(interval("100ms").unwrap(), Duration::from_millis(100));
        assert_eq!(interval("1m").unwrap(), Duration::from_secs(60));
        for odd in [
            "",
            "5",
            "s",
            "-1s",
            "0s",
            "1h",
            "1.5s",
            "9999999999999999999999s",
        ] {
            assert!(interval(odd).is_err(), "{odd}");
        }
    }
}
