//! The laws at the calls of the runtime.

use hanok_runtime::api::{
    Container, ContainerConfig, ContainerId, ContainerState, Error, PodSandboxConfig, PodUid,
    SandboxState,
};

use super::Book;
use crate::pod::observation::statuses;
use crate::pod::sim::world::World;
use crate::pod::spec::{self, ContainerKind};

impl World {
    /// A sandbox is asked for.
    pub(in crate::pod::sim) fn before_sandbox(&mut self, config: &PodSandboxConfig) {
        let uid = &config.uid;
        let Some(book) = self.laws.books.get(uid) else {
            return self.broken(format_args!("a sandbox for {uid}, of which nobody told"));
        };
        if book.reborn.is_some() && !self.is_born_again(uid, false) {
            self.broken(format_args!("{uid} begins anew before it is gone"));
        }
        self.may_begin(uid, "a sandbox");
        if self.machine.living(uid).next().is_some() {
            self.broken(format_args!(
                "a new sandbox for {uid} beside processes of the old one"
            ));
        }
        let mut others = self
            .machine
            .sandboxes
            .iter()
            .filter(|sandbox| sandbox.config.uid == *uid);
        if others.any(|sandbox| sandbox.state == SandboxState::Ready) {
            self.broken(format_args!("two live sandboxes for {uid}"));
        }
        self.namesakes_are_gone(config);
    }

    /// A pod that came back under its UID begins a new life once nothing is left of the old one.
    pub(in crate::pod::sim) fn is_born_again(&mut self, uid: &PodUid, ended: bool) -> bool {
        let mut sandboxes = self.machine.sandboxes.iter();
        if sandboxes.any(|sandbox| sandbox.config.uid == *uid) {
            return false;
        }
        let Some(book) = self.laws.books.get_mut(uid) else {
            return false;
        };
        if book.published && !ended {
            return false;
        }
        let Some(pod) = book.reborn.take() else {
            return false;
        };
        let flights = std::mem::take(&mut book.flights);
        *book = Book {
            flights,
            ..Book::new(pod)
        };
        true
    }

    /// Static pods keep their name over a change of UID: the old one is gone before the new one begins.
    fn namesakes_are_gone(&mut self, config: &PodSandboxConfig) {
        let uid = &config.uid;
        let book = self.laws.books.get(uid);
        if !book.is_some_and(|book| spec::is_static(&book.pod) && !book.rough) {
            return;
        }
        let mut namesakes = self.machine.sandboxes.iter().filter(|sandbox| {
            let other = &sandbox.config;
            other.uid != *uid && other.name == config.name && other.namespace == config.namespace
        });
        if let Some(old) = namesakes.next().map(|old| old.config.uid.clone()) {
            self.broken(format_args!(
                "{uid} begins before its namesake {old} is gone"
            ));
        }
    }

    /// Whether anything of a pod may begin.
    pub(in crate::pod::sim) fn may_begin(&mut self, uid: &PodUid, what: &str) {
        let now = self.now;
        let Some(book) = self.laws.books.get(uid).filter(|book| !book.rough) else {
            return;
        };
        if book.ending.is_some_and(|ending| ending.told < now) {
            self.broken(format_args!(
                "{what} of {uid} begins after its end was asked for"
            ));
        } else if book.is_over() {
            self.broken(format_args!(
                "{what} of {uid} begins after its terminal phase"
            ));
        }
    }

    /// A sandbox is removed for good.
    pub(in crate::pod::sim) fn before_remove_sandbox(&mut self, uid: &PodUid) {
        let Some(book) = self.laws.books.get(uid) else {
            return;
        };
        if !book.flights.is_empty() {
            let flights = format!("{:?}", book.flights);
            self.broken(format_args!(
                "the sandbox of {uid} is removed under {flights}"
            ));
        }
        let Some(book) = self.laws.books.get(uid) else {
            return;
        };
        let spent = book.rough || book.ending.is_none_or(|ending| ending.until <= self.now);
        if self.machine.living(uid).next().is_some() && !spent {
            self.broken(format_args!(
                "the sandbox of {uid} is removed over living processes"
            ));
        }
    }

    /// A container is made.
    pub(in crate::pod::sim) fn before_create(&mut self, uid: &PodUid, config: &ContainerConfig) {
        let (name, attempt) = (&config.name, config.attempt);
        let Some(book) = self.laws.books.get(uid) else {
            return;
        };
        let Some(highest) = book
            .attempts
            .get(name)
            .copied()
            .filter(|highest| attempt <= *highest)
        else {
            return;
        };
        let known = self.machine.records.iter().any(|record| {
            let same = record.pod == *uid
                && record.config.name == *name
                && record.config.attempt == highest;
            same && record.state != ContainerState::Created
        });
        if known || attempt < highest {
            self.broken(format_args!(
                "run {attempt} of {uid} {name} comes after run {highest}"
            ));
        }
    }

    /// A container is started.
    pub(in crate::pod::sim) fn before_start(&mut self, record: &Container) {
        let (uid, name) = (&record.pod, &record.config.name);
        if record.state != ContainerState::Created {
            self.broken(format_args!("{} is started twice", record.id));
        }
        if self.machine.lives(uid, name) {
            self.broken(format_args!("two live instances of {uid} {name}"));
        }
        let Some(book) = self.laws.books.get(uid) else {
            return;
        };
        let forgotten = self.apps_are_forgotten(book, record);
        if let Some(why) = out_of_order(book, record, forgotten) {
            return self.broken(format_args!("{name} of {uid} starts {why}"));
        }
        let same = |run: &&super::Run| run.is_like(record);
        let Some(run) = book.runs.get(name).filter(same) else {
            return;
        };
        let wait = run.pause();
        if let Some(ended) = run.ended
            && self.now < ended + wait
        {
            let waited = self.now - ended;
            self.broken(format_args!(
                "{name} of {uid} starts {waited} ms after its end instead of {wait}"
            ));
        }
    }

    /// Whether nothing tells any more that apps have run in the sandbox: their records are lost, and no status that the
    /// agent has had or given knows of a run. The documentation of init containers has it that a lost record alone does
    /// not run them again; where there is no trace at all, as of a static pod under a new agent, they come first.
    fn apps_are_forgotten(&self, book: &Book, record: &Container) -> bool {
        let is_app = |name: &str| {
            let mut apps = spec::app_containers(&book.pod).iter();
            apps.any(|app| app.name == name)
        };
        let mut records = self.machine.records.iter();
        let recorded =
            records.any(|other| other.sandbox == record.sandbox && is_app(&other.config.name));
        let mut told = book.last.iter().flat_map(statuses);
        !recorded && !told.any(|told| told.container_id.is_some() && is_app(&told.name))
    }

    /// The start fails: the program is not there, or something else.
    pub(in crate::pod::sim) fn cannot_start(&mut self, id: &ContainerId) -> Error {
        let (now, millis) = (self.time(), self.now);
        let missing = self.chance.percent(50);
        let Some(record) = self.machine.record(id).filter(|_| missing) else {
            return Error::Internal("the shim does not answer".to_owned());
        };
        record.state = ContainerState::Exited;
        record.exit_code = 128;
        record.reason = "StartError".to_owned();
        record.finished_at = Some(now);
        let record = record.clone();
        self.process_started(&record);
        let book = self.laws.books.get_mut(&record.pod);
        if let Some(run) = book.and_then(|book| book.runs.get_mut(&record.config.name)) {
            run.ended = Some(millis);
        }
        Error::Start {
            id: id.clone(),
            code: 128,
            message: "no such program".to_owned(),
        }
    }

    /// A record is removed.
    pub(in crate::pod::sim) fn before_remove(&mut self, id: &ContainerId) {
        if self.machine.processes.contains_key(id) {
            self.broken(format_args!("the record of {id} is removed while it lives"));
        }
        self.removed_for_reset(id);
    }

    /// A cgroup is removed.
    pub(in crate::pod::sim) fn before_remove_cgroup(&mut self, path: &str) -> Result<(), Error> {
        let uid = path
            .rsplit_once("/pod")
            .map(|(_, uid)| PodUid(uid.to_owned()));
        if uid.is_some_and(|uid| self.machine.living(&uid).next().is_some()) {
            return Err(Error::Internal(format!("{path}: device or resource busy")));
        }
        Ok(())
    }
}

/// Why a container must not start yet, by the order of the pod's containers.
fn out_of_order(book: &Book, record: &Container, forgotten: bool) -> Option<String> {
    let inside = book
        .inside
        .get(&record.sandbox)
        .cloned()
        .unwrap_or_default();
    let name = &record.config.name;
    let init = spec::init_containers(&book.pod);
    let (kind, _) = spec::find_container(&book.pod, name)?;
    let before = match kind {
        ContainerKind::Ephemeral => return None,
        ContainerKind::App => init.len(),
        ContainerKind::Init | ContainerKind::Sidecar => {
            init.iter().position(|container| container.name == *name)?
        }
    };
    if kind == ContainerKind::Init && inside.completed.contains(name) && !inside.lost.contains(name)
    {
        return Some("again after it has ended well".to_owned());
    }
    if kind == ContainerKind::Init && inside.apps && !forgotten {
        return Some("beside apps".to_owned());
    }
    // What comes after it has been there once: it is only started again.
    if kind == ContainerKind::Sidecar && inside.begun.contains(name) {
        return None;
    }
    let missing = init[..before]
        .iter()
        .find(|container| match spec::init_kind(container) {
            ContainerKind::Sidecar => !inside.begun.contains(&container.name),
            _ => !inside.completed.contains(&container.name),
        });
    if let Some(missing) = missing {
        return Some(format!("before {} is done", missing.name));
    }
    let apps = spec::app_containers(&book.pod);
    let position = apps.iter().position(|container| container.name == *name);
    // One whose first run has failed does not come first again.
    let earlier_apps = apps[..position.unwrap_or(0)].iter();
    let earlier_apps =
        earlier_apps.filter(|container| book.attempts.get(&container.name) == Some(&0));
    // Beside apps, a sidecar is only started again.
    let earlier_init = init[..before].iter().filter(|_| !inside.apps);
    let mut earlier = earlier_init.chain(earlier_apps);
    let hook_runs = |container: &&k8s_openapi::api::core::v1::Container| {
        let run = book.runs.get(&container.name);
        !inside.hooked.contains(&container.name)
            && run.is_some_and(|run| book.hooks.contains(&run.id))
    };
    let hook = &earlier.find(hook_runs)?.name;
    Some(format!("before the postStart hook of {hook} is over"))
}
