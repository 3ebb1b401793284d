//! `create`: everything but the program.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use hanok_shim::frame;
use hanok_shim::hook::Hook;
use hanok_shim::launch::{Message, Order};
use hanok_shim::protocol::Namespace;
use hanok_shim::sys::process::kill;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::bundle::Bundle;
use super::launcher::Launcher;
use super::record::{CONFIG, PROCESS, Record, START_SOCKET, start_time};
use super::{OciError, Result, Runtime, cgroups, console, filters, hooks, namespaces, translate};

/// Directory below the root for what all containers share. No id begins with a dot.
const SHARED: &str = ".shared";

/// How to create a container.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// The bundle's directory.
    pub bundle: PathBuf,
    /// Where the master side of the terminal is sent; absolute.
    pub console_socket: Option<PathBuf>,
    /// Where the process id is written; absolute.
    pub pid_file: Option<PathBuf>,
    /// How many descriptors from 3 on the container gets.
    pub preserve_fds: u32,
}

/// A container that was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) record: Record,
    /// The master side of its terminal, when nobody else was to get it.
    pub(super) master: Option<OwnedFd>,
}

impl Runtime {
    /// Creates a container. When it fails, nothing is left of it. Changes the working directory to the bundle,
    /// as hooks expect it.
    pub fn create(&self, id: &str, options: &CreateOptions) -> Result<()> {
        let bundle = Bundle::load(&options.bundle)?;
        let tty = bundle.process()?.terminal() == Some(true);
        if tty != options.console_socket.is_some() {
            let message = match tty {
                true => "process.terminal needs --console-socket",
                false => "--console-socket is for a process with a terminal",
            };
            return Err(OciError::Option(message.into()));
        }
        self.make(id, &bundle, options).map(drop)
    }

    pub(super) fn make(&self, id: &str, bundle: &Bundle, options: &CreateOptions) -> Result<Made> {
        std::env::set_current_dir(&bundle.dir).map_err(OciError::io("enter", &bundle.dir))?;
        let rootfs = bundle.rootfs()?;
        let chrooted = translate::shares_mounts(bundle)?;
        let dir = Record::reserve(&self.root, id)?;
        let annotations = bundle.spec.annotations().clone().unwrap_or_default();
        let mut record = Record {
            id: id.to_owned(),
            pid: 0,
            started: 0,
            bundle: bundle.dir.clone(),
            rootfs,
            created: jiff::Timestamp::now().to_string(),
            annotations: annotations.into_iter().collect(),
            cgroups: Vec::new(),
            unit: None,
            chrooted,
            users: namespaces::users(&bundle.linux())?.map(|users| users.root),
            poststart: Vec::new(),
            poststop: Vec::new(),
            dir,
        };
        let made = self.try_make(&mut record, bundle, options);
        match made {
            Ok(master) => Ok(Made { record, master }),
            Err(error) => {
                undo(self, &record);
                Err(error)
            }
        }
    }

    fn try_make(
        &self,
        record: &mut Record,
        bundle: &Bundle,
        options: &CreateOptions,
    ) -> Result<Option<OwnedFd>> {
        record.put(CONFIG, &bundle.bytes)?;
        let plan = hooks::plan(bundle.spec.hooks().as_ref(), record)?;
        let shared_dir = self.shared_dir()?;
        let mut launcher = Launcher::start(&self.shim, &shared_dir)?;
        record.poststart = plan.poststart;
        record.poststop = plan.poststop;
        // Until the container is there; with it goes what keeps the cgroup.
        let mut cgroups = cgroups::plan(self, &bundle.linux(), record)?;
        if !cgroups.may_come_later() {
            cgroups.make(self, record)?;
        }
        let filter = bundle
            .seccomp
            .as_ref()
            .map(|policy| filters::get(&shared_dir, policy))
            .transpose()?;
        let inputs = translate::Inputs {
            record,
            filter: filter.as_ref(),
            preserved_fds: options.preserve_fds,
            announce_prepared: !plan.create_runtime.is_empty(),
            create_hooks: plan.create_container,
            start_hooks: plan.start_container,
        };
        let mut order = translate::order(bundle, inputs)?;
        // Without a namespace of its own, its view of them is made of their directories.
        let own_view = order.container.namespaces.cgroup != Namespace::Host;
        order.cgroups_later = cgroups.may_come_later() && own_view;
        let later = order.cgroups_later;
        if !later {
            cgroups.make(self, record)?;
        }
        let process = frame::encode(&order.container.process)
            .map_err(|error| OciError::Config(error.to_string()))?;
        record.put(PROCESS, &process)?;
        let listener = listen(&record.dir)?;
        let order = Order::Create(Box::new(order));
        launcher.order(&order, &[listener.as_fd()])?;
        drop(listener);
        if later {
            launcher = self.make_late(&mut cgroups, launcher, record)?;
        }
        let master = follow(launcher, record, bundle, (options, &plan.create_runtime))?;
        record.started = start_time(record.pid).unwrap_or(0);
        record.save()?;
        if let Some(path) = &options.pid_file {
            write_pid(path, record.pid)?;
        }
        Ok(master)
    }

    /// Makes the cgroups while the container's process begins, which goes on in them.
    fn make_late(
        &self,
        cgroups: &mut cgroups::Plan,
        mut launcher: Launcher,
        record: &mut Record,
    ) -> Result<Launcher> {
        if let Err(error) = cgroups.make(self, record) {
            record.pid = launcher.give_up();
            return Err(error);
        }
        // One that has ended meanwhile has said why.
        let _ = launcher.go_on();
        Ok(launcher)
    }

    /// Made when it is missing.
    pub(super) fn shared_dir(&self) -> Result<PathBuf> {
        let dir = self.root.join(SHARED);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(OciError::io("create", &dir)(error))
            }
            _ => Ok(dir),
        }
    }
}

/// Hears what the launcher tells until the container waits to be started; returns the master side of its terminal.
fn follow(
    mut launcher: Launcher,
    record: &mut Record,
    bundle: &Bundle,
    (options, created): (&CreateOptions, &[Hook]),
) -> Result<Option<OwnedFd>> {
    let mut master = None;
    loop {
        match launcher.next()? {
            (Message::Cloned { pid }, _) => {
                let before = std::mem::replace(&mut record.pid, pid);
                if before != 0 {
                    // It has done its part and ends.
                    let _ = waitpid(Pid::from_raw(before), WaitOptions::empty());
                }
            }
            (Message::Terminal, fd) => {
                master = place_terminal(fd, bundle, options.console_socket.as_deref())?;
            }
            (Message::Prepared, _) => {
                hooks::run(created, record.pid)?;
                launcher.go_on()?;
            }
            (Message::Ready, _) => break,
            (Message::Failed { kind, message }, _) => {
                return Err(OciError::Process { kind, message });
            }
        }
    }
    launcher.finish();
    Ok(master)
}

/// The socket at which the container will wait. Its path may be longer than an address can be, its name is not.
fn listen(dir: &Path) -> Result<UnixListener> {
    UnixListener::bind(socket_address(&open_dir(dir)?))
        .map_err(OciError::io("listen at", &dir.join(START_SOCKET)))
}

/// The socket by way of its open directory.
pub(super) fn socket_address(dir: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(START_SOCKET)
}

pub(super) fn open_dir(dir: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty())
        .map_err(|error| OciError::io("open", dir)(error.into()))
}

/// The terminal goes to the console socket, or stays with us.
fn place_terminal(
    master: Option<OwnedFd>,
    bundle: &Bundle,
    socket: Option<&Path>,
) -> Result<Option<OwnedFd>> {
    let Some(master) = master else {
        return Ok(None);
    };
    if let Some(size) = console::size(bundle.process()?) {
        console::resize(&master, size);
    }
    match socket {
        Some(socket) => console::send(&master, socket).map(|()| None),
        None => Ok(Some(master)),
    }
}

/// Written whole or not at all: somebody waits for this file.
pub(super) fn write_pid(path: &Path, pid: i32) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{pid}"));
    let write = || -> io::Result<()> {
        // What others have put there, a link above all, is not written to.
        let _ = fs::remove_file(&temporary);
        let mut file = fs::File::create_new(&temporary)?;
        let done = file.write_all(pid.to_string().as_bytes());
        let done = done.and_then(|()| fs::rename(&temporary, path));
        if done.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        done
    };
    write().map_err(OciError::io("write", path))
}

/// Takes back what was made. What cannot be taken back is left; the error of the creation is the one to tell.
fn undo(runtime: &Runtime, record: &Record) {
    if record.pid > 1 {
        let _ = kill(record.pid, libc::SIGKILL);
        // It is a child of ours.
        let _ = waitpid(Pid::from_raw(record.pid), WaitOptions::empty());
    }
    let _ = cgroups::remove(runtime, record);
    unmount_shared(record);
    let _ = fs::remove_dir_all(&record.dir);
}

/// Unmounts the root filesystem of a container that has no mount namespace of its own, with all below it.
pub(super) fn unmount_shared(record: &Record) {
    if record.chrooted {
        // It may have come no further than before that mount, or have it in another namespace than ours.
        let _ = unmount(
            &record.rootfs,
            UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_process_id_is_written_to_no_link_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let canary = dir.path().join("canary");
        fs::write(&canary, "alive").unwrap();
        symlink(&canary, dir.path().join(".p.7")).unwrap();
        symlink(&canary, dir.path().join("p")).unwrap();
        write_pid(&dir.path().join("p"), 7).unwrap();
        fs::create_dir_all(dir.path().join("d/below")).unwrap();
        assert!(write_pid(&dir.path().join("d"), 7).is_err());
        assert!(write_pid(&dir.path().join("absent/p"), 7).is_err());
        assert_eq!(fs::read_to_string(dir.path().join("p")).unwrap(), "7");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "alive");
        let names = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["canary", "d", "p"]);
    }
}
