//! StartAhead: a container's process that begins before its cgroups are there.

use std::fs;
use std::io::{PipeWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hanok_shim::client::Client;
use hanok_shim::protocol::*;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount as mount_fs, mount_change, unmount,
};

use crate::rig::{Pod, bind, mount, wait_for};

fn begin(pod: &Pod, spec: &ContainerSpec) -> (Client, PipeWriter) {
    let (theirs, ours) = std::io::pipe().unwrap();
    let mut client = pod.client();
    let spec = Box::new(spec.clone());
    let request = Request::StartAhead { spec, label: None };
    client.send(&request, &[theirs.as_fd()]).unwrap();
    (client, ours)
}

fn failure(reply: Reply) -> (FailureKind, String) {
    match reply {
        Reply::Failed { kind, message } => (kind, message),
        other => panic!("{other:?}"),
    }
}

/// Names of cgroups that are not there yet, in some that are.
fn late_cgroups(pod: &mut Pod) -> Vec<String> {
    let made = pod.make_cgroups().into_iter();
    made.map(|dir| format!("{dir}/late")).collect()
}

/// Makes them, says so, and gives the answer.
fn tell_of_cgroups(spec: &ContainerSpec, client: &mut Client, pipe: &mut PipeWriter) -> Reply {
    for dir in &spec.cgroups {
        fs::create_dir(dir).unwrap();
    }
    pipe.write_all(&[1]).unwrap();
    client.reply().unwrap()
}

/// Waits until the places where the container's process has mounts are as they should be.
fn await_mounts(pod: &Pod, wanted: impl Fn(&[String]) -> bool) {
    wait_for("the mounts of it", || {
        let children = format!("/proc/{0}/task/{0}/children", pod.shim_pid);
        let children = fs::read_to_string(children).ok()?;
        children.split_whitespace().find_map(|pid| {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
            let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
            let places: Vec<String> = places.map(str::to_owned).collect();
            wanted(&places).then_some(())
        })
    })
}

/// Whether the container's own mounts are all that there are.
fn has_entered(spec: &ContainerSpec, places: &[String]) -> bool {
    places.iter().all(|place| {
        let mut mounts = spec.mounts.iter();
        place == "/" || mounts.any(|mount| Path::new(place).starts_with(&mount.destination))
    })
}

fn has(places: &[String], place: &str) -> bool {
    places.iter().any(|one| one == place)
}

/// A filesystem that the node mounts, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn shared(place: PathBuf) -> Self {
        fs::create_dir_all(&place).unwrap();
        mount_fs("tmpfs", &place, "tmpfs", MountFlags::empty(), None).unwrap();
        let mounted = Self(place);
        mount_change(&mounted.0, MountPropagationFlags::SHARED).unwrap();
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn root_a_container_joins_cgroups_that_are_made_after_its_birth() {
    let mut pod = Pod::started();
    let mut spec = pod.spec("c1", &["sleep", "1000"]);
    spec.cgroups = late_cgroups(&mut pod);
    let (mut client, mut pipe) = begin(&pod, &spec);
    let reply = tell_of_cgroups(&spec, &mut client, &mut pipe);
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        // There it would have had to be born in it.
        assert_eq!(failure(reply).0, FailureKind::Invalid);
    } else {
        let Reply::Started { pid } = reply else {
            panic!("{reply:?}")
        };
        for dir in &spec.cgroups {
            let inside = fs::read_to_string(format!("{dir}/cgroup.procs")).unwrap();
            assert_eq!(inside.trim(), pid.to_string(), "{dir}");
        }
        pod.ok(&Request::Kill {
            id: "c1".into(),
            signal: 9,
            all: true,
        });
        pod.exit("c1");
    }
    for dir in &spec.cgroups {
        wait_for("an empty cgroup", || fs::remove_dir(dir).ok());
    }
}

#[test]
fn root_a_start_fails_when_its_cgroups_will_never_be_there() {
    let mut pod = Pod::started();
    let mut spec = pod.spec("c1", &["true"]);
    let (mut client, pipe) = begin(&pod, &spec);
    drop(pipe);
    assert_eq!(
        failure(client.reply().unwrap()),
        (FailureKind::System, "the cgroups were not made".into())
    );
    // Whatever is said of them.
    spec.cgroups = late_cgroups(&mut pod);
    let (mut client, mut pipe) = begin(&pod, &spec);
    pipe.write_all(&[1]).unwrap();
    let (kind, message) = failure(client.reply().unwrap());
    assert_eq!(kind, FailureKind::System);
    assert!(message.starts_with("cannot open cgroup"), "{message}");
    // Nothing of it is left.
    spec.cgroups.clear();
    pod.run(&spec);
    assert_eq!(pod.exit("c1").code, 0);
}

#[test]
fn root_a_process_that_fails_before_its_cgroups_are_there_says_why() {
    let pod = Pod::started();
    let mut spec = pod.spec("c1", &["true"]);
    spec.rootfs = Rootfs::Dir("/nowhere".into());
    let (mut client, _pipe) = begin(&pod, &spec);
    let (_, message) = failure(client.reply().unwrap());
    assert!(message.contains("/nowhere"), "{message}");
}

#[test]
fn root_a_start_ahead_without_a_pipe_is_invalid() {
    let pod = Pod::started();
    let spec = Box::new(pod.spec("c1", &["true"]));
    let reply = pod.call(&Request::StartAhead { spec, label: None });
    assert_eq!(failure(reply).0, FailureKind::Invalid);
}

#[test]
fn root_a_container_begins_without_the_nodes_mounts() {
    let mut pod = Pod::started();
    let volume = pod.path("volume");
    fs::create_dir(&volume).unwrap();
    let mut spec = pod.spec("c1", &["true"]);
    spec.mounts.insert(0, mount("/data", bind(&volume), 0));
    spec.cgroups = late_cgroups(&mut pod);
    let (_client, _pipe) = begin(&pod, &spec);
    // It mounts what does not depend on its cgroups, enters its root, and waits for them.
    await_mounts(&pod, |places| {
        has_entered(&spec, places) && has(places, "/data")
    });
}

/// A volume that propagates, before all other mounts and behind them. What the node mounts below them meanwhile is there
/// too.
fn assert_has_what_is_mounted_meanwhile(pod: &mut Pod, propagation: u64) {
    let mut volumes = Vec::new();
    let mut spec = pod.spec("c1", &["cat", "/first/below/word", "/last/below/word"]);
    for (at, name) in [(0, "first"), (spec.mounts.len() + 1, "last")] {
        let volume = Mounted::shared(pod.path(&format!("{name}-volume")));
        fs::create_dir(volume.0.join("below")).unwrap();
        let source = MountSource::Bind {
            path: volume.0.to_str().unwrap().into(),
            recursive: true,
        };
        let mut propagates = mount(&format!("/{name}"), source, 0);
        propagates.propagation = propagation;
        spec.mounts.insert(at, propagates);
        volumes.push(volume);
    }
    spec.cgroups = late_cgroups(pod);
    let (mut client, mut pipe) = begin(pod, &spec);
    // Both are in a copy of the pod's mount namespace before it waits.
    await_mounts(pod, |places| {
        has_entered(&spec, places) && ["/first", "/last"].iter().all(|volume| has(places, volume))
    });
    let below = volumes.iter().map(|volume| volume.0.join("below"));
    let below: Vec<Mounted> = below.map(Mounted::shared).collect();
    for volume in &below {
        fs::write(volume.0.join("word"), "here\n").unwrap();
    }
    let reply = tell_of_cgroups(&spec, &mut client, &mut pipe);
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        // There it would have had to be born in it.
        assert_eq!(failure(reply).0, FailureKind::Invalid);
    } else {
        assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
        assert_eq!(pod.exit("c1").code, 0);
        assert_eq!(pod.log_text("c1"), "here\nhere\n");
    }
    for dir in &spec.cgroups {
        wait_for("an empty cgroup", || fs::remove_dir(dir).ok());
    }
}

#[test]
fn root_a_receiving_volume_has_what_the_node_mounts_while_the_start_waits() {
    assert_has_what_is_mounted_meanwhile(&mut Pod::started(), libc::MS_SLAVE);
}

#[test]
fn root_a_shared_volume_has_what_the_node_mounts_while_the_start_waits() {
    assert_has_what_is_mounted_meanwhile(&mut Pod::started(), libc::MS_SHARED);
}
