//! The process that calls the command lines and makes the floor: one thread, and the subreaper of what they leave.
//!
//! Started from this very program. A line a task comes in, a line an answer goes out: `ok NANOSECONDS`, or `no WHY`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::set_child_subreaper;

use crate::RUNTIMES;
use crate::arena::{Arena, KINDS, variant};
use crate::command::Runtime;
use crate::floor::Floor;

/// The argument that makes this program a worker.
pub(crate) const VERB: &str = "worker";

/// A worker, from outside.
pub(crate) struct Worker {
    child: Child,
    tasks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(arena: &Arena) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(VERB)
            .arg(arena.dir.path())
            .env("HANOK", arena.hanok())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            tasks: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// One task and its answer.
    pub(crate) fn ask(&mut self, task: &str) -> Result<Duration, String> {
        writeln!(self.tasks.as_mut().unwrap(), "{task}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        match answer.trim_end().split_once(' ') {
            Some(("ok", nanos)) => Ok(Duration::from_nanos(nanos.parse().unwrap())),
            Some((_, why)) => Err(why.to_owned()),
            None => Err("the worker has ended".to_owned()),
        }
    }
}

impl Drop for Worker {
    /// Waits until it has removed what it holds.
    fn drop(&mut self) {
        drop(self.tasks.take());
        let _ = self.child.wait();
    }
}

/// The worker itself.
struct Tasks {
    dir: PathBuf,
    runtimes: Vec<Runtime>,
    floors: Vec<Floor>,
    /// The process in which the floor makes its exec.
    target: i32,
}

pub(crate) fn serve(dir: &Path) {
    set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let hanok = PathBuf::from(std::env::var_os("HANOK").unwrap());
    let mut tasks = Tasks {
        dir: dir.to_owned(),
        runtimes: RUNTIMES.map(|name| Runtime::new(name, &hanok, dir)).into(),
        floors: KINDS
            .map(|kind| Floor::new(&dir.join(format!("{kind}-floor"))))
            .into(),
        target: 0,
    };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match tasks.carry_out(&words) {
            Ok(took) => format!("ok {}\n", took.as_nanos()),
            Err(why) => format!("no {}\n", why.replace('\n', " ")),
        };
        std::io::stdout().write_all(answer.as_bytes()).unwrap();
    }
    tasks.runtimes.iter().for_each(Runtime::clear_up);
}

impl Tasks {
    fn carry_out(&mut self, words: &[&str]) -> Result<Duration, String> {
        match *words {
            ["floor", kind, cgroups] => {
                let index = KINDS.iter().position(|one| *one == kind).unwrap();
                self.floors[index].run(cgroups == "cgroups")
            }
            ["floor-exec", cgroups] => self.floors[0].exec(self.target, cgroups == "cgroups"),
            ["life", name, kind] => self.runtime(name).life(&self.bundle(kind, name)),
            ["run", name, kind] => self.runtime(name).run(&self.bundle(kind, name)),
            ["exec", name] => self.runtime(name).exec(),
            ["sleeper", name] => {
                let bundle = self.variant(name, "sleeper", |spec| {
                    spec["process"]["args"] = serde_json::json!(["/bin/sleep", "1000"]);
                });
                self.target = self.runtime(name).sleeper(&bundle)?;
                Ok(Duration::ZERO)
            }
            ["limit", name, bytes] => {
                let bytes: u64 = bytes.parse().unwrap();
                let bundle = self.variant(name, "limit", |spec| {
                    let limit = serde_json::json!({ "limit": bytes, "swap": bytes });
                    spec["linux"]["resources"]["memory"] = limit;
                });
                self.runtime(name).run(&bundle)
            }
            _ => Err(format!("unknown task {words:?}")),
        }
    }

    fn runtime(&self, name: &str) -> &Runtime {
        let found = self.runtimes.iter().find(|runtime| runtime.name == name);
        found.unwrap()
    }

    fn bundle(&self, kind: &str, name: &str) -> PathBuf {
        self.dir.join(format!("{kind}-{name}"))
    }

    fn variant(
        &self,
        name: &str,
        what: &str,
        edit: impl FnOnce(&mut serde_json::Value),
    ) -> PathBuf {
        let of = format!("pod-{name}");
        variant(&self.dir, &of, &format!("{what}-{name}"), edit)
    }
}
