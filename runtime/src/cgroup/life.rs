//! A cgroup's life: made, given processes and limits, changed, removed; by whichever driver there is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::driver::Joined;
use super::systemd::Holder;
use super::{CgroupError, Cgroups, DeviceRule, Hierarchy, Undo};
use super::{apply, checked, remove, values, write_file};
use crate::api::Resources;

/// A cgroup that a process can be born in.
#[derive(Debug)]
#[must_use = "with it goes what keeps the cgroup until the process is there"]
pub struct Prepared {
    /// The directories to join.
    pub directories: Vec<PathBuf>,
    holder: Option<Holder>,
}

impl Prepared {
    /// The process is in it, or will never be.
    pub fn release(self) {
        if let Some(holder) = self.holder {
            // It is waited for.
            tokio::task::spawn_blocking(move || drop(holder));
        }
    }
}

impl Cgroups {
    /// Makes the cgroup (and those above it, without limits) with these limits, for other cgroups to be in. When it
    /// fails, what was made is for the caller to remove.
    pub async fn update(&self, path: &str, resources: &Resources) -> Result<(), CgroupError> {
        let settings = self.settings(resources);
        self.driver.make(checked(path)?, &settings).await?;
        self.set(&self.place(path)?, resources)
    }

    /// Makes a cgroup for a process that is born in it.
    pub async fn prepare(
        &self,
        path: &str,
        resources: &Resources,
        devices: &[DeviceRule],
    ) -> Result<Prepared, CgroupError> {
        let settings = self.settings(resources);
        let holder = self.driver.hold(checked(path)?, &settings, devices);
        let holder = holder.await?;
        self.set(&self.place(path)?, resources)?;
        self.restrict_devices(path, devices)?;
        Ok(Prepared {
            directories: self.directories(path)?,
            holder,
        })
    }

    /// As [`Cgroups::prepare`], some time before the process, in a cgroup that is there; none with a driver that makes
    /// no cgroup without a process. When it fails, what was made is for the caller to remove.
    pub fn prepare_ahead(
        &self,
        path: &str,
        resources: &Resources,
        devices: &[DeviceRule],
    ) -> Result<Option<Prepared>, CgroupError> {
        if self.driver.joined() == Joined::Afterwards {
            return Ok(None);
        }
        let place = self.place(path)?;
        for hierarchy in &self.hierarchies {
            self.make_leaf(hierarchy, &place)?;
            hierarchy.limit(&place, resources)?;
        }
        self.restrict_devices(path, devices)?;
        Ok(Some(Prepared {
            directories: self.directories(path)?,
            holder: None,
        }))
    }

    /// Whether a process may begin before its cgroup is there: on v1, where none is born in one, and with a driver that
    /// makes cgroups without a process.
    pub fn may_come_later(&self) -> bool {
        self.driver.joined() == Joined::AtBirth && !self.is_v2()
    }

    /// Where the holder of a pod's namespaces is to be born, at `path` in the pod's cgroup; none when it is born
    /// outside, and [`Cgroups::adopt`] puts it where it belongs. That is so on v1, where moving takes long, and with
    /// systemd, which makes no scope without a process: nothing waits for either.
    pub async fn cradle(&self, pod: &str, path: &str) -> Result<Vec<PathBuf>, CgroupError> {
        match (self.driver.joined(), self.is_v2()) {
            (Joined::Afterwards, _) => {}
            (Joined::AtBirth, true) => {
                self.update(path, &Resources::default()).await?;
                return self.directories(path);
            }
            (Joined::AtBirth, false) if pod.is_empty() => {}
            (Joined::AtBirth, false) => self.update(pod, &Resources::default()).await?,
        }
        Ok(Vec::new())
    }

    /// Puts the holder of a pod's namespaces where it belongs, if it was not born there.
    pub async fn adopt(
        self: Arc<Self>,
        pod: String,
        path: &str,
        pid: i32,
    ) -> Result<(), CgroupError> {
        match (self.driver.joined(), self.is_v2()) {
            (Joined::Afterwards, _) => {
                self.driver.adopt(checked(path)?, pid).await?;
                let place = self.place(path)?;
                self.join_rest(&place, pid)
            }
            (Joined::AtBirth, true) => Ok(()),
            (Joined::AtBirth, false) if pod.is_empty() => Ok(()),
            (Joined::AtBirth, false) => tokio::task::spawn_blocking(move || self.join(&pod, pid))
                .await
                .unwrap_or(Ok(())),
        }
    }

    /// Removes what [`Cgroups::cradle`] and [`Cgroups::adopt`] have made at `path`.
    pub async fn remove_cradle(&self, path: &str) -> Result<(), CgroupError> {
        match (self.driver.joined(), self.is_v2()) {
            (Joined::AtBirth, false) => Ok(()),
            _ => self.remove(path).await,
        }
    }

    /// Changes the limits of a cgroup whose processes run: all of them, or none and an error. Zero and empty
    /// values are left alone.
    ///
    /// # Errors
    /// [`CgroupError::InUse`] when the memory in use does not fit in the new limit; nobody is killed for it.
    pub async fn change(
        self: &Arc<Self>,
        path: &str,
        resources: &Resources,
    ) -> Result<Undo, CgroupError> {
        let (cgroups, place, wanted) = (self.clone(), self.place(path)?, resources.clone());
        // The kernel may reclaim memory for a lower limit meanwhile.
        let changing = tokio::task::spawn_blocking(move || cgroups.change_files(&place, &wanted));
        let undo = changing.await.map_err(|error| CgroupError::Io {
            verb: "change",
            path: path.into(),
            source: io::Error::other(error),
        })??;
        if undo.is_empty() {
            return Ok(undo);
        }
        // Not before the files, for systemd sets a memory limit without asking whether what is in use fits.
        let settings = self.settings(resources);
        let told = match self.driver.change(checked(path)?, &settings).await {
            // It has set back what it does not know.
            Ok(true) => self.set(&self.place(path)?, resources),
            told => told.map(drop),
        };
        match told {
            Ok(()) => Ok(undo),
            Err(error) => {
                undo.undo();
                Err(error)
            }
        }
    }

    fn change_files(&self, path: &Path, resources: &Resources) -> Result<Undo, CgroupError> {
        let mut undo = Undo::default();
        for hierarchy in &self.hierarchies {
            let directory = hierarchy.base.join(path);
            let writes = values::writes(resources, hierarchy.unified, &hierarchy.controllers);
            let changed = self
                .make_chain(hierarchy, path)
                .and_then(|()| apply::change(&directory, writes, &mut undo));
            if let Err(error) = changed {
                undo.undo();
                return Err(error);
            }
        }
        Ok(undo)
    }

    /// The same in v1 hierarchies that systemd does not know.
    fn join_rest(&self, place: &Path, pid: i32) -> Result<(), CgroupError> {
        let unknown = |one: &&Hierarchy| one.has("cpuset") || one.has("hugetlb");
        for hierarchy in self.hierarchies.iter().filter(unknown) {
            self.make_chain(hierarchy, place)?;
            let directory = hierarchy.base.join(place);
            write_file(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Kills what is left in the cgroup and below it, and removes it. Absent is success.
    pub async fn remove(&self, path: &str) -> Result<(), CgroupError> {
        let place = self.place(path)?;
        let is_there = |one: &Hierarchy| one.base.join(&place).is_dir();
        if !self.hierarchies.iter().any(is_there) {
            return Ok(());
        }
        if self.driver.forgets() {
            for hierarchy in &self.hierarchies {
                let directory = hierarchy.base.join(&place);
                remove::empty_tree(&directory, hierarchy.unified).await?;
            }
            self.driver.forget(checked(path)?).await?;
        }
        for hierarchy in &self.hierarchies {
            remove::remove_tree(&hierarchy.base.join(&place), hierarchy.unified).await?;
        }
        Ok(())
    }
}
