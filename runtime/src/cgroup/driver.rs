//! Who makes cgroups: we ourselves by their filesystem, or systemd on our behalf.
//!
//! The seam between both. Everything above speaks of paths (`kubepods/burstable/podUID/ID`) and calls the same
//! functions; what a path is called, and who is asked, is decided here and nowhere else.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::systemd::names::child;
use super::systemd::{Holder, Setting, Systemd, Unit};
use super::{CgroupError, DeviceRule, tracking};

/// Which driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverKind {
    /// Directories that we make.
    #[default]
    Cgroupfs,
    /// Units that systemd makes.
    Systemd,
}

impl FromStr for DriverKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cgroupfs" => Ok(Self::Cgroupfs),
            "systemd" => Ok(Self::Systemd),
            _ => Err(format!(
                "unknown cgroup driver {text:?}: write cgroupfs or systemd"
            )),
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        })
    }
}

/// When a process comes to a cgroup that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joined {
    /// It is born there where the kernel can do that.
    AtBirth,
    /// Once it runs.
    Afterwards,
}

/// The driver in use.
#[derive(Debug)]
pub(super) enum Driver {
    /// Paths are directories, and making them is all.
    Cgroupfs,
    /// Paths are slices and scopes.
    Systemd {
        systemd: Systemd,
        /// Names of the slices above all others.
        root: String,
        /// Mount points of the hierarchies by which systemd knows whether a scope lives; none on v2.
        tracking: Vec<PathBuf>,
    },
}

impl Driver {
    pub(super) async fn systemd(root: &str, shim: &Path, v2: bool) -> Result<Self, CgroupError> {
        Ok(Self::Systemd {
            systemd: Systemd::open(shim.to_owned(), v2).await?,
            root: root.to_owned(),
            tracking: match v2 {
                true => Vec::new(),
                false => tracking()?,
            },
        })
    }

    /// The directory of a path in every hierarchy.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        match self {
            Self::Cgroupfs => path.to_owned(),
            Self::Systemd { root, .. } => Unit::of_path(root, path).directory,
        }
    }

    /// The last part of the path that this directory's is, if it has one.
    pub(super) fn child(&self, directory: &str) -> Option<String> {
        match self {
            Self::Cgroupfs => Some(directory.to_owned()),
            Self::Systemd { .. } => child(directory).map(str::to_owned),
        }
    }

    /// Where else a process has to be, for the driver to know of it.
    pub(super) fn tracking(&self) -> &[PathBuf] {
        match self {
            Self::Cgroupfs => &[],
            Self::Systemd { tracking, .. } => tracking,
        }
    }

    pub(super) fn joined(&self) -> Joined {
        match self {
            Self::Cgroupfs => Joined::AtBirth,
            Self::Systemd { .. } => Joined::Afterwards,
        }
    }

    /// Before the directories of a cgroup for other cgroups are made.
    pub(super) async fn make(&self, path: &Path, settings: &[Setting]) -> Result<(), CgroupError> {
        match self {
            Self::Cgroupfs => Ok(()),
            Self::Systemd { systemd, root, .. } => {
                let unit = Unit::of_path(root, path);
                Ok(systemd.make_slice(&unit, settings).await?)
            }
        }
    }

    /// Before the directories of a cgroup for processes are made. What it returns is kept until one is there.
    pub(super) async fn hold(
        &self,
        path: &Path,
        settings: &[Setting],
        devices: &[DeviceRule],
    ) -> Result<Option<Holder>, CgroupError> {
        match self {
            Self::Cgroupfs => Ok(None),
            Self::Systemd { systemd, root, .. } => {
                let unit = Unit::of_path(root, path);
                Ok(Some(systemd.hold(&unit, settings, devices).await?))
            }
        }
    }

    /// Makes a cgroup of a process that runs, which the kernel's files alone cannot.
    pub(super) async fn adopt(&self, path: &Path, pid: i32) -> Result<(), CgroupError> {
        match self {
            Self::Cgroupfs => Ok(()),
            Self::Systemd { systemd, root, .. } => {
                let unit = Unit::of_path(root, path);
                Ok(systemd.adopt(&unit, pid.cast_unsigned()).await?)
            }
        }
    }

    /// Tells of limits that were changed; whether the files are to be written again.
    pub(super) async fn change(
        &self,
        path: &Path,
        settings: &[Setting],
    ) -> Result<bool, CgroupError> {
        match self {
            Self::Cgroupfs => Ok(false),
            Self::Systemd { systemd, root, .. } => {
                let unit = Unit::of_path(root, path);
                Ok(systemd.set(&unit.name, settings).await?)
            }
        }
    }

    /// Whether somebody has to be told before directories are removed.
    pub(super) fn forgets(&self) -> bool {
        matches!(self, Self::Systemd { .. })
    }

    /// Ends a cgroup without processes.
    pub(super) async fn forget(&self, path: &Path) -> Result<(), CgroupError> {
        match self {
            Self::Cgroupfs => Ok(()),
            Self::Systemd { systemd, root, .. } => {
                let unit = Unit::of_path(root, path);
                Ok(systemd.stop(&unit.name).await?)
            }
        }
    }
}
