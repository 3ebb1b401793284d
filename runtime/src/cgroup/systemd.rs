//! The systemd driver: cgroups are units of systemd's, which makes them and knows their limits.
//!
//! ```text
//!   a group of pods, a pod     a slice     StartTransientUnit; SetUnitProperties when it is there already
//!   a container                a scope     the same with a holder's PID, then born into its directory
//!   pause                      a scope     with its PID once it runs, aside
//!   the end                                processes are killed by us, StopUnit forgets
//! ```
//! A container's start costs one method call and the end of its job, and the start of a [`holder`], beside what the
//! cgroupfs driver does: a scope is delegated, so its files are ours and written all the same, with what systemd does
//! not know among them. A unit that has ended is forgotten by systemd itself, so usually nothing is to be stopped.

mod answer;
mod bus;
mod holder;
pub(crate) mod names;
mod properties;

use std::path::{Path, PathBuf};

use answer::{Outcome, Task, encoded};
pub use bus::SystemdError;
use bus::{Answered, Bus};
pub(crate) use holder::Holder;
pub(crate) use names::Unit;
use properties::Property;
pub(crate) use properties::Setting;

use super::DeviceRule;
use super::detect::own_paths;

/// Replaces a job of the same unit that has not begun.
const MODE: &str = "replace";

/// Units by systemd.
#[derive(Debug)]
pub(crate) struct Systemd {
    bus: Bus,
    /// The program of [`Holder`]s.
    shim: PathBuf,
    unified: bool,
}

impl Systemd {
    /// Connects, so that an absent systemd is told at once.
    pub(crate) async fn open(shim: PathBuf, unified: bool) -> Result<Self, SystemdError> {
        Self::with(Bus::new(), shim, unified).await
    }

    async fn with(bus: Bus, shim: PathBuf, unified: bool) -> Result<Self, SystemdError> {
        let systemd = Self { bus, shim, unified };
        systemd.bus.connect().await?;
        Ok(systemd)
    }

    /// Makes a slice with these limits, or gives one that is there these limits.
    pub(crate) async fn make_slice(
        &self,
        unit: &Unit,
        settings: &[Setting],
    ) -> Result<(), SystemdError> {
        let mut properties = properties::common("Pods", self.unified);
        properties.extend(self.limits(settings));
        if self.start(unit, &properties).await? == Outcome::Exists {
            self.take_over_slice(unit, settings).await?;
        }
        Ok(())
    }

    /// A slice that somebody else has named before: another pod, an agent before us, the administrator.
    async fn take_over_slice(&self, unit: &Unit, settings: &[Setting]) -> Result<(), SystemdError> {
        let task = Task {
            verb: "start",
            unit: &unit.name,
        };
        let body = (unit.name.as_str(), MODE);
        // It may be known and not be started.
        let (changed, started) = tokio::join!(
            biased;
            self.set(&unit.name, settings),
            self.bus
                .request(task, Answered::Job, "StartUnit", &body)
        );
        changed?;
        started.map(drop)
    }

    /// Makes a scope with these limits, in which the holder is.
    pub(crate) async fn hold(
        &self,
        unit: &Unit,
        settings: &[Setting],
        devices: &[DeviceRule],
    ) -> Result<Holder, SystemdError> {
        let (holder, properties) = self.begin(unit, settings, devices)?;
        self.start_scope(unit, holder.pid(), &properties, settings)
            .await?;
        Ok(holder)
    }

    /// The same, for who has not made this scope before: one that is there is somebody else's, and an error. Nothing is
    /// left after an error, since a scope ends with its holder.
    pub(crate) async fn hold_new(
        &self,
        unit: &Unit,
        settings: &[Setting],
        devices: &[DeviceRule],
    ) -> Result<Holder, SystemdError> {
        let (holder, properties) = self.begin(unit, settings, devices)?;
        self.start_new(unit, holder.pid(), &properties).await?;
        Ok(holder)
    }

    /// Makes a scope of a process that runs.
    pub(crate) async fn adopt(&self, unit: &Unit, pid: u32) -> Result<(), SystemdError> {
        let properties = self.scope(unit, pid, Vec::new());
        self.start_scope(unit, pid, &properties, &[]).await
    }

    /// The holder of a scope that is to be made, and the scope's properties.
    fn begin(
        &self,
        unit: &Unit,
        settings: &[Setting],
        devices: &[DeviceRule],
    ) -> Result<(Holder, Vec<Property>), SystemdError> {
        let holder = Holder::start(&self.shim).map_err(|source| SystemdError::Holder {
            program: self.shim.clone(),
            source,
        })?;
        let mut limits = self.limits(settings);
        if !self.unified {
            let known = std::fs::read_to_string("/proc/devices").unwrap_or_default();
            limits.extend(properties::devices(devices, &known));
        }
        let properties = self.scope(unit, holder.pid(), limits);
        Ok((holder, properties))
    }

    async fn start_new(
        &self,
        unit: &Unit,
        pid: u32,
        properties: &[Property],
    ) -> Result<(), SystemdError> {
        let started = async || {
            let outcome = self.start(unit, properties).await?;
            // It is ours when the answer to the same call before this one was lost.
            Ok(outcome != Outcome::Exists || is_in(pid, unit))
        };
        if started().await? {
            return Ok(());
        }
        // It may have ended, and be kept because it failed. One that has not does not change by it.
        self.reset(unit).await?;
        match started().await? {
            true => Ok(()),
            false => Err(SystemdError::Taken {
                unit: unit.name.clone(),
            }),
        }
    }

    async fn start_scope(
        &self,
        unit: &Unit,
        pid: u32,
        properties: &[Property],
        settings: &[Setting],
    ) -> Result<(), SystemdError> {
        if self.start(unit, properties).await? != Outcome::Exists {
            return Ok(());
        }
        // The answer to the same call before this one was lost, or an agent before us made it.
        let task = Task {
            verb: "move a process to",
            unit: &unit.name,
        };
        let body = (unit.name.as_str(), "", vec![pid]);
        let attached = self
            .bus
            .request(task, Answered::Reply, "AttachProcessesToUnit", &body)
            .await;
        if matches!(attached, Ok(Outcome::Done)) {
            return self.set(&unit.name, settings).await.map(drop);
        }
        // It has ended, and is kept because it failed.
        self.reset(unit).await?;
        match self.start(unit, properties).await? {
            Outcome::Exists => attached.map(drop),
            _ => Ok(()),
        }
    }

    async fn reset(&self, unit: &Unit) -> Result<(), SystemdError> {
        let task = Task {
            verb: "reset",
            unit: &unit.name,
        };
        let body = (unit.name.as_str(),);
        self.bus
            .request(task, Answered::Reply, "ResetFailedUnit", &body)
            .await
            .map(drop)
    }

    /// Properties of a scope that begins with a process.
    fn scope(&self, unit: &Unit, pid: u32, more: Vec<Property>) -> Vec<Property> {
        let mut properties = properties::common("Container", self.unified);
        properties.extend(properties::scope(&unit.slice, pid));
        properties.extend(more);
        properties
    }

    async fn start(&self, unit: &Unit, properties: &[Property]) -> Result<Outcome, SystemdError> {
        let task = Task {
            verb: "start",
            unit: &unit.name,
        };
        type Auxiliary = Vec<(String, Vec<(String, zbus::OwnedVariant)>)>;
        let body = (
            unit.name.as_str(),
            MODE,
            encoded(properties),
            Auxiliary::new(),
        );
        self.bus
            .request(task, Answered::Job, "StartTransientUnit", &body)
            .await
    }

    /// Changes the limits of a unit that is there; whether it is. Afterwards systemd writes none of them any more by
    /// itself.
    pub(crate) async fn set(&self, unit: &str, settings: &[Setting]) -> Result<bool, SystemdError> {
        let limits = self.limits(settings);
        if limits.is_empty() {
            return Ok(true);
        }
        let task = Task {
            verb: "change",
            unit,
        };
        let body = (unit, true, encoded(&limits));
        let set = self
            .bus
            .request(task, Answered::Deed, "SetUnitProperties", &body);
        Ok(set.await? != Outcome::Absent)
    }

    /// Ends a unit whose processes are gone. Absent is success.
    pub(crate) async fn stop(&self, name: &str) -> Result<(), SystemdError> {
        let task = Task {
            verb: "stop",
            unit: name,
        };
        self.bus
            .request(task, Answered::Job, "StopUnit", &(name, MODE))
            .await
            .map(drop)
    }

    fn limits(&self, settings: &[Setting]) -> Vec<Property> {
        properties::limits(settings, self.bus.version())
    }
}

/// Whether a process is where a unit's are.
fn is_in(pid: u32, unit: &Unit) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    own_paths(&text).any(|(_, path)| Path::new(path).ends_with(&unit.directory))
}

#[cfg(test)]
mod tests;
