//! How fast a container's output gets into its log file, and what CPU time that costs who writes it.
//!
//! Beside hanok's shim: conmon, in the same format; and the kernel's own share, `cat | cat > file`.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hanok_runtime::api::{Mount, Propagation, RuntimeService};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::json;

use crate::arena::Arena;
use crate::command;
use crate::in_process::{Pod, program};
use crate::report::{Report, Row};

/// Lines of output, of this many bytes with their newline.
const LINES: usize = 1_000_000;
const LINE: usize = 100;

/// The last line.
const END: &[u8] = b"END\n";

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes all lines and stays.
const SCRIPT: [&str; 3] = ["/bin/sh", "-c", "cat /data/lines; exec sleep 1000"];

/// What was measured of one writer.
struct Throughput {
    took: Duration,
    cpu: Duration,
}

pub(crate) async fn measure(pod: &Pod, arena: &Arena, report: &mut Report) {
    let data = make_data(arena);
    let mut all = vec![("hanok", hanok(pod, &data).await)];
    all.extend(conmon(arena, &data).map(|measured| ("conmon", measured)));
    all.push(("cat | cat > file", kernel(arena, &data)));
    fs::remove_dir_all(&data).unwrap();
    let bytes = LINES as f64 * LINE as f64;
    let rates = |(name, measured): &(&str, Throughput)| {
        Row::value(name, bytes / 1e6 / measured.took.as_secs_f64())
    };
    let costs = |(name, measured): &(&str, Throughput)| {
        Row::value(name, measured.cpu.as_secs_f64() / bytes * 1e9)
    };
    report.group(
        "log throughput",
        "MB/s",
        &all.iter().map(rates).collect::<Vec<_>>(),
    );
    report.group(
        "CPU time of who writes the log",
        "s/GB",
        &all.iter().map(costs).collect::<Vec<_>>(),
    );
}

fn make_data(arena: &Arena) -> PathBuf {
    let dir = arena.dir.path().join("data");
    fs::create_dir(&dir).unwrap();
    let mut file = BufWriter::new(File::create(dir.join("lines")).unwrap());
    let text = "x".repeat(LINE - 1) + "\n";
    for _ in 0..LINES {
        file.write_all(text.as_bytes()).unwrap();
    }
    file.write_all(END).unwrap();
    file.flush().unwrap();
    dir
}

async fn hanok(pod: &Pod, data: &Path) -> Throughput {
    let mut config = program("log", &SCRIPT);
    config.mounts.push(Mount {
        container_path: "/data".into(),
        host_path: data.to_owned(),
        sub_path: String::new(),
        readonly: true,
        recursive_readonly: false,
        propagation: Propagation::Private,
        selinux_relabel: false,
    });
    let shim = pod.shim();
    let before = cpu(shim);
    let id = pod.start(config).await;
    let log = pod.rig.status(&id).await.log_path;
    let took = follow(&log);
    let cpu = cpu(shim) - before;
    pod.rig.runtime().remove_container(&id).await.unwrap();
    fs::remove_file(log).unwrap();
    Throughput { took, cpu }
}

fn conmon(arena: &Arena, data: &Path) -> Option<Throughput> {
    let conmon = Conmon::start(arena, "log", &SCRIPT, Some(data))?;
    let took = follow(&conmon.log);
    let cpu = cpu(conmon.pid);
    let log = conmon.log.clone();
    conmon.stop();
    fs::remove_file(log).unwrap();
    Some(Throughput { took, cpu })
}

fn kernel(arena: &Arena, data: &Path) -> Throughput {
    let out = arena.dir.path().join("out");
    let begin = Instant::now();
    let mut reader = Command::new("cat")
        .arg(data.join("lines"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut writer = Command::new("cat")
        .stdin(reader.stdout.take().unwrap())
        .stdout(File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(writer.id().cast_signed()).unwrap();
    // Ended, and still there to be asked.
    waitid(
        WaitId::Pid(pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    )
    .unwrap();
    let took = begin.elapsed();
    let cpu = cpu(writer.id());
    writer.wait().unwrap();
    reader.wait().unwrap();
    fs::remove_file(out).unwrap();
    Throughput { took, cpu }
}

/// From the first byte of a log to its last line.
fn follow(log: &Path) -> Duration {
    let deadline = Instant::now() + PATIENCE;
    let mut begin = None;
    loop {
        assert!(Instant::now() < deadline, "{} does not grow", log.display());
        std::thread::sleep(LOOK);
        let size = fs::metadata(log).map_or(0, |found| found.len());
        if size > 0 {
            let begin = *begin.get_or_insert_with(Instant::now);
            if size > (LINES * LINE) as u64 && ends(log) {
                return begin.elapsed();
            }
        }
    }
}

fn ends(log: &Path) -> bool {
    let mut file = File::open(log).unwrap();
    let mut tail = Vec::new();
    file.seek(SeekFrom::End(-(END.len().cast_signed() as i64)))
        .unwrap();
    file.read_to_end(&mut tail).unwrap();
    tail == END
}

/// What a process has used, all of its threads.
fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// A container of crun's that conmon supervises, as podman and CRI-O have it.
pub(crate) struct Conmon {
    pub(crate) pid: u32,
    pub(crate) log: PathBuf,
    container: i32,
    id: String,
    runtime: command::Runtime,
}

impl Conmon {
    /// None where conmon or crun does not work.
    pub(crate) fn start(
        arena: &Arena,
        name: &str,
        command: &[&str],
        data: Option<&Path>,
    ) -> Option<Self> {
        let bundle = arena.variant("pod-crun", name, |spec| {
            spec["process"]["args"] = json!(command);
            if let Some(data) = data {
                let mount = json!({ "destination": "/data", "type": "bind", "source": data, "options": ["rbind", "ro"] });
                spec["mounts"].as_array_mut().unwrap().push(mount);
            }
        });
        let file = |name: &str| bundle.join(name);
        let runtime = arena.runtime("crun");
        let crun = ["/usr/bin/crun", "/usr/local/bin/crun"]
            .into_iter()
            .find(|path| Path::new(path).exists())?;
        let id = format!("{}-{name}", arena.dir.path().file_name()?.to_str()?);
        let log = file("log");
        let status = Command::new("conmon")
            .args([
                "--cid",
                &id,
                "--cuuid",
                &id,
                "--name",
                &id,
                "--runtime",
                crun,
            ])
            .args(
                runtime
                    .arguments
                    .iter()
                    .map(|word| format!("--runtime-arg={word}")),
            )
            .arg("--bundle")
            .arg(&bundle)
            .arg("--container-pidfile")
            .arg(file("pid"))
            .arg("--conmon-pidfile")
            .arg(file("conmon.pid"))
            .arg("--exit-dir")
            .arg(&bundle)
            .arg("--persist-dir")
            .arg(&bundle)
            .arg("--socket-dir-path")
            .arg(&bundle)
            .args(["--full-attach", "--no-sync-log", "--log-level", "error"])
            .arg("--log-path")
            .arg(format!("k8s-file:{}", log.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.ok().filter(|status| status.success())?;
        let number =
            |name| -> Option<u32> { fs::read_to_string(file(name)).ok()?.trim().parse().ok() };
        // The program that returned is not the one that writes them.
        let deadline = Instant::now() + PATIENCE;
        let (pid, container) = loop {
            match (number("conmon.pid"), number("pid")) {
                (Some(pid), Some(container)) => break (pid, container),
                _ if Instant::now() > deadline => return None,
                _ => std::thread::sleep(LOOK),
            }
        };
        runtime.call(&["start", &id]).ok()?;
        Some(Self {
            pid,
            log,
            container: container.cast_signed(),
            id,
            runtime,
        })
    }

    pub(crate) fn stop(self) {
        command::kill(self.container);
        let _ = self.runtime.call(&["delete", "--force", &self.id]);
        command::kill(self.pid.cast_signed());
    }
}
