//! The floor: the system calls that a container cannot do without, and nothing else.
//!
//! clone3 with the namespaces, the mounts, the masks, pivot_root, the filter, execve, wait; on demand also the
//! cgroups: made, limited, joined, removed. No user, no capabilities, no checks, no log, no record, and paths are
//! trusted. It reads the same `config.json` as the others, beforehand.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hanok_runtime::seccomp::{Filter, Policy};
use hanok_shim::devices::{LINKS, NODES};
use hanok_shim::sys::clone::{Cloned, clone_process, ns, setns, unshare};
use hanok_shim::sys::exec::{execve, exit_now};
use hanok_shim::sys::net::loopback_up;
use hanok_shim::sys::process::load_seccomp;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::process::{Pid, PidfdFlags, WaitOptions, chdir, pidfd_open, pivot_root, waitpid};
use serde_json::Value;

use crate::arena::{floor_cgroups, inherit_cpuset};

struct Mount {
    target: PathBuf,
    source: String,
    kind: String,
    flags: MountFlags,
    data: CString,
}

/// A container, read and ready.
pub(crate) struct Floor {
    root: PathBuf,
    mounts: Vec<Mount>,
    masked: Vec<String>,
    readonly: Vec<String>,
    filter: Filter,
    /// Namespaces of a pod that are joined.
    joined: Vec<OwnedFd>,
    /// Namespaces of its own, but that of the cgroups.
    new: u64,
    cgroups: Vec<PathBuf>,
    own_pids: OwnedFd,
}

impl Floor {
    pub(crate) fn new(bundle: &Path) -> Self {
        let text = fs::read(bundle.join("config.json")).unwrap();
        let spec: Value = serde_json::from_slice(&text).unwrap();
        let linux = &spec["linux"];
        let filter = serde_json::from_value::<Policy>(linux["seccomp"].clone()).unwrap();
        let mut floor = Self {
            root: spec["root"]["path"].as_str().unwrap().into(),
            mounts: spec["mounts"]
                .as_array()
                .unwrap()
                .iter()
                .map(read_mount)
                .collect(),
            masked: strings(&linux["maskedPaths"]),
            readonly: strings(&linux["readonlyPaths"]),
            filter: filter.compile().unwrap(),
            joined: Vec::new(),
            new: 0,
            cgroups: floor_cgroups(linux["cgroupsPath"].as_str().unwrap()),
            own_pids: open_path("/proc/self/ns/pid"),
        };
        for namespace in linux["namespaces"].as_array().unwrap() {
            match namespace["path"].as_str() {
                Some(path) => floor.joined.push(open_path(path)),
                None => floor.new |= bit(namespace["type"].as_str().unwrap()),
            }
        }
        floor
    }

    /// A container from clone to wait.
    pub(crate) fn run(&self, cgroups: bool) -> Result<Duration, String> {
        let begin = Instant::now();
        if cgroups {
            self.make_cgroups().map_err(|error| error.to_string())?;
        }
        let (reader, writer) = io::pipe().unwrap();
        let cloned = clone_process(self.new, None).map_err(|error| error.to_string())?;
        let Cloned::Parent { pid, .. } = cloned else {
            drop(writer);
            let failed = self.become_container(reader, cgroups);
            eprintln!("floor: {failed:?}");
            exit_now(1);
        };
        drop(reader);
        if cgroups {
            self.join_cgroups(pid).map_err(|error| error.to_string())?;
        }
        drop(writer);
        wait(pid)?;
        if cgroups {
            for directory in &self.cgroups {
                fs::remove_dir(directory).map_err(|error| error.to_string())?;
            }
        }
        Ok(begin.elapsed())
    }

    /// Another process in the container of `target`.
    pub(crate) fn exec(&self, target: i32, cgroups: bool) -> Result<Duration, String> {
        let places = match cgroups {
            true => cgroups_of(target),
            false => Vec::new(),
        };
        let begin = Instant::now();
        let target = pidfd_open(Pid::from_raw(target).unwrap(), PidfdFlags::empty()).unwrap();
        setns(&target, ns::PID).unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let cloned = clone_process(0, None).map_err(|error| error.to_string())?;
        let Cloned::Parent { pid, .. } = cloned else {
            drop(writer);
            let all = ns::MNT | ns::NET | ns::IPC | ns::UTS | ns::CGROUP;
            // Wakes when the other end is closed.
            let _ = io::read_to_string(reader);
            setns(&target, all).unwrap();
            let failed = self.confine_and_exec();
            eprintln!("floor: {failed:?}");
            exit_now(1);
        };
        setns(&self.own_pids, ns::PID).unwrap();
        for directory in places {
            fs::write(directory.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        drop((reader, writer));
        wait(pid)?;
        Ok(begin.elapsed())
    }

    fn become_container(&self, reader: io::PipeReader, cgroups: bool) -> io::Result<()> {
        for namespace in &self.joined {
            setns(namespace, 0)?;
        }
        if self.new & ns::NET != 0 {
            loopback_up()?;
        }
        mount_change(
            "/",
            MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
        )?;
        mount_bind(&self.root, &self.root)?;
        chdir(&self.root)?;
        for mount in self.mounts.iter().filter(|mount| mount.kind != "cgroup") {
            self.mount(mount)?;
        }
        self.fill_dev()?;
        for path in &self.readonly {
            self.make_readonly(path)?;
        }
        for path in &self.masked {
            self.mask(path)?;
        }
        if cgroups {
            // Ends when we are in them.
            io::read_to_string(reader)?;
        }
        unshare(ns::CGROUP)?;
        for mount in self.mounts.iter().filter(|mount| mount.kind == "cgroup") {
            self.mount_cgroups(mount)?;
        }
        pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        chdir("/")?;
        self.confine_and_exec()
    }

    fn confine_and_exec(&self) -> io::Result<()> {
        load_seccomp(&self.filter.program, self.filter.flags)?;
        Err(execve(c"/bin/true", &[c"true".to_owned()], &[]).into())
    }

    fn mount(&self, given: &Mount) -> io::Result<()> {
        if !given.target.exists() {
            match given.kind == "bind" {
                true => drop(fs::File::create(&given.target)?),
                false => fs::create_dir_all(&given.target)?,
            }
        }
        match given.kind == "bind" {
            true => mount_bind(&given.source, &given.target)?,
            false => mount(
                &given.source,
                &given.target,
                &given.kind,
                given.flags,
                given.data.as_c_str(),
            )?,
        }
        Ok(())
    }

    /// One tree on v2, one a hierarchy on v1.
    fn mount_cgroups(&self, given: &Mount) -> io::Result<()> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let names: Vec<&str> = own
            .lines()
            .filter_map(|line| line.split(':').nth(1).filter(|name| !name.is_empty()))
            .collect();
        let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        if names.is_empty() {
            return Ok(mount("cgroup", &given.target, "cgroup2", quiet, None)?);
        }
        mount("tmpfs", &given.target, "tmpfs", quiet, c"mode=755")?;
        for name in names {
            let target = given.target.join(name.trim_start_matches("name="));
            fs::create_dir(&target)?;
            let data = match name.starts_with("name=") {
                true => CString::new(format!("none,{name}"))?,
                false => CString::new(name)?,
            };
            mount(
                "cgroup",
                &target,
                "cgroup",
                quiet | MountFlags::RDONLY,
                data.as_c_str(),
            )?;
        }
        Ok(())
    }

    fn fill_dev(&self) -> io::Result<()> {
        for (name, major, minor) in NODES {
            let path = Path::new("dev").join(name);
            let mode = Mode::from_raw_mode(0o666);
            mknodat(
                CWD,
                path,
                FileType::CharacterDevice,
                mode,
                makedev(major, minor),
            )?;
        }
        for (name, target) in LINKS {
            std::os::unix::fs::symlink(target, Path::new("dev").join(name))?;
        }
        Ok(())
    }

    fn make_readonly(&self, path: &str) -> io::Result<()> {
        let target = path.trim_start_matches('/');
        if !Path::new(target).exists() {
            return Ok(());
        }
        mount_bind(target, target)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        Ok(mount_remount(target, flags, c"")?)
    }

    fn mask(&self, path: &str) -> io::Result<()> {
        let target = Path::new(path.trim_start_matches('/'));
        if target.is_dir() {
            return Ok(mount(
                "tmpfs",
                target,
                "tmpfs",
                MountFlags::RDONLY,
                c"size=0k",
            )?);
        }
        match target.exists() {
            true => Ok(mount_bind("/dev/null", target)?),
            false => Ok(()),
        }
    }

    fn make_cgroups(&self) -> io::Result<()> {
        for directory in &self.cgroups {
            fs::create_dir(directory)?;
            inherit_cpuset(directory)?;
            for (file, value) in LIMITS {
                let path = directory.join(file);
                if path.exists() {
                    fs::write(path, value)?;
                }
            }
        }
        Ok(())
    }

    fn join_cgroups(&self, pid: i32) -> io::Result<()> {
        for directory in &self.cgroups {
            fs::write(directory.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }
}

/// The limits of all containers here, in v1's files and in v2's.
const LIMITS: [(&str, &str); 18] = [
    ("cpu.shares", "512"),
    ("cpu.cfs_period_us", "100000"),
    ("cpu.cfs_quota_us", "200000"),
    ("memory.limit_in_bytes", "134217728"),
    ("pids.max", "100"),
    ("devices.deny", "a *:* rwm"),
    ("devices.allow", "c *:* m"),
    ("devices.allow", "b *:* m"),
    ("devices.allow", "c 1:3 rwm"),
    ("devices.allow", "c 1:5 rwm"),
    ("devices.allow", "c 1:7 rwm"),
    ("devices.allow", "c 1:8 rwm"),
    ("devices.allow", "c 1:9 rwm"),
    ("devices.allow", "c 5:0 rwm"),
    ("devices.allow", "c 5:2 rwm"),
    ("devices.allow", "c 136:* rwm"),
    ("cpu.max", "200000 100000"),
    ("memory.max", "134217728"),
];

fn wait(pid: i32) -> Result<(), String> {
    let status = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    match status.map_err(|error| error.to_string())? {
        Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
        other => Err(format!("the floor's container: {other:?}")),
    }
}

/// The cgroups of a process that hanok's containers join too.
fn cgroups_of(pid: i32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let memory = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let name = fields.next()?;
        let path = fields.next()?;
        (name.is_empty() || name == "memory").then_some(path)
    });
    floor_cgroups(memory.unwrap())
}

fn bit(namespace: &str) -> u64 {
    match namespace {
        "mount" => ns::MNT,
        "network" => ns::NET,
        "uts" => ns::UTS,
        "ipc" => ns::IPC,
        "pid" => ns::PID,
        // It begins where the process is in the end.
        _ => 0,
    }
}

fn open_path(path: &str) -> OwnedFd {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|one| one.as_str().map(str::to_owned))
        .collect()
}

fn read_mount(given: &Value) -> Mount {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in strings(&given["options"]) {
        match option.as_str() {
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "ro" => flags |= MountFlags::RDONLY,
            "strictatime" => flags |= MountFlags::STRICTATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            "rw" | "bind" | "rbind" | "rprivate" => {}
            _ => data.push(option),
        }
    }
    Mount {
        target: given["destination"]
            .as_str()
            .unwrap()
            .trim_start_matches('/')
            .into(),
        source: given["source"].as_str().unwrap().to_owned(),
        kind: given["type"].as_str().unwrap().to_owned(),
        flags,
        data: CString::new(data.join(",")).unwrap(),
    }
}
