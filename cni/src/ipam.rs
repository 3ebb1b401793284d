//! host-local: addresses out of fixed ranges, leased by files in a directory.
//!
//! ```text
//! DIR/10.1.0.5            one lease: container id, CR LF, interface name
//! DIR/last_reserved_ip.0  where the rotation of range set 0 stands
//! DIR/lock                flock(2) around every change
//! DIR/.tmp-…              a lease being written; left only by a crash, removed by collection
//! ```
//! It is the layout of the host-local plugin that everybody uses, so that both may serve one network.
//! A lease appears with its content (link(2) of a finished file), or not at all.

mod range;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Map, Value};

use crate::spec::{AddResult, Field, IpConfig, ParseError, Route};
use range::{RangeSet, read_range_set};

/// Longest lease that is read: a container id and an interface name.
const MAX_LEASE: u64 = 1024;

/// An address in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Container id of its holder.
    pub container: String,
    /// Interface it is on; empty in leases of very old plugins.
    pub ifname: String,
}

/// What a directory of leases holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leases {
    /// Leases, by address.
    pub leases: Vec<Lease>,
    /// Files that are no leases of anybody. Nobody removes them but the administrator.
    pub foreign: Vec<PathBuf>,
}

/// Addresses could not be leased or released.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// The configuration is wrong.
    #[error("configuration of host-local is wrong")]
    Config(#[from] ParseError),
    /// Nothing is free.
    #[error("no IP addresses available in range set {range}")]
    Exhausted {
        /// The set, as `start-end` of each of its ranges.
        range: String,
    },
    /// The directory of leases.
    #[error("cannot {step} {}", .path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// The leases of a directory. A missing directory has none.
pub fn list(dir: &Path) -> Result<Leases, IpamError> {
    let mut found = Leases::default();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(failed("read", dir)(e)),
    };
    for entry in entries {
        let entry = entry.map_err(failed("read", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "lock" || name.starts_with("last_reserved_ip.") || name.starts_with(".tmp-") {
            continue;
        }
        match name
            .parse()
            .ok()
            .and_then(|address| read_lease(&entry.path(), address))
        {
            Some(lease) => found.leases.push(lease),
            // Released between the listing and the look.
            None if !entry.path().exists() => {}
            None => found.foreign.push(entry.path()),
        }
    }
    found.leases.sort_by_key(|lease| lease.address);
    found.foreign.sort();
    Ok(found)
}

/// Frees every lease of a container's interface. Returns the addresses; none is fine.
pub(crate) fn release(dir: &Path, id: &str, ifname: &str) -> Result<Vec<IpAddr>, IpamError> {
    free(dir, |lease| {
        lease.container == id && (lease.ifname.is_empty() || lease.ifname == ifname)
    })
}

/// Frees every lease whose container is not of the set, and what a crash left half written.
pub(crate) fn collect(dir: &Path, valid: &HashSet<String>) -> Result<Vec<IpAddr>, IpamError> {
    let freed = free(dir, |lease| !valid.contains(&lease.container))?;
    let Some(_lock) = lock_existing(dir)? else {
        return Ok(freed);
    };
    for entry in fs::read_dir(dir).map_err(failed("read", dir))? {
        let path = entry.map_err(failed("read", dir))?.path();
        if path
            .file_name()
            .and_then(|n| n.to_str())
            .is_some_and(|n| n.starts_with(".tmp-"))
        {
            unlink(&path)?;
        }
    }
    Ok(freed)
}

fn free(dir: &Path, which: impl Fn(&Lease) -> bool) -> Result<Vec<IpAddr>, IpamError> {
    let Some(_lock) = lock_existing(dir)? else {
        return Ok(Vec::new());
    };
    let mut freed = Vec::new();
    for lease in list(dir)?.leases.into_iter().filter(|lease| which(lease)) {
        unlink(&dir.join(lease.address.to_string()))?;
        freed.push(lease.address);
    }
    Ok(freed)
}

/// The host-local part of a plugin's configuration.
#[derive(Debug, Clone)]
pub(crate) struct HostLocal {
    sets: Vec<RangeSet>,
    routes: Vec<Route>,
    data_dir: Option<PathBuf>,
}

impl HostLocal {
    /// Reads the `ipam` object.
    pub(crate) fn parse(plugin: &Map<String, Value>) -> Result<Self, IpamError> {
        let value = Value::Object(plugin.clone());
        let root = Field::root(&value).need("ipam")?;
        let mut sets = Vec::new();
        if root.get("subnet")?.is_some() {
            sets.push(read_range_set(std::slice::from_ref(&root))?);
        }
        for set in root.list("ranges")? {
            sets.push(read_range_set(&set.elements()?)?);
        }
        if sets.is_empty() {
            return Err(ParseError::Missing {
                field: "ipam.ranges".into(),
            }
            .into());
        }
        let mut routes = Vec::new();
        for route in root.list("routes")? {
            routes.push(crate::spec::read_route(&route)?);
        }
        let data_dir = root.text("dataDir")?;
        let data_dir = (!data_dir.is_empty()).then(|| PathBuf::from(data_dir));
        Ok(Self {
            sets,
            routes,
            data_dir,
        })
    }

    /// The directory of leases: what the configuration says, or the given one; one below it per network.
    pub(crate) fn dir(&self, default: &Path, network: &str) -> PathBuf {
        self.data_dir.as_deref().unwrap_or(default).join(network)
    }

    /// The subnets that addresses come from.
    pub(crate) fn subnets(&self) -> Vec<ipnet::IpNet> {
        self.sets.iter().flat_map(RangeSet::subnets).collect()
    }

    /// Leases one address of every range set; all or none.
    pub(crate) fn allocate(
        &self,
        dir: &Path,
        id: &str,
        ifname: &str,
    ) -> Result<AddResult, IpamError> {
        if !dir.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .map_err(failed("make", dir))?;
        }
        let _lock = lock(dir)?;
        let draft = dir.join(format!(".tmp-{id}-{ifname}"));
        write_file(&draft, &format!("{id}\r\n{ifname}"))?;
        let mut result = AddResult {
            routes: self.routes.clone(),
            ..AddResult::default()
        };
        let mut outcome = Ok(());
        for (number, set) in self.sets.iter().enumerate() {
            match allocate_one(dir, &draft, number, set) {
                Ok(ip) => result.ips.push(ip),
                Err(e) => {
                    outcome = Err(e);
                    break;
                }
            }
        }
        unlink(&draft)?;
        if outcome.is_err() {
            for ip in &result.ips {
                unlink(&dir.join(ip.address.addr().to_string()))?;
            }
        }
        outcome.map(|()| result)
    }
}

/// Takes the next free address after the last one that was given out.
fn allocate_one(
    dir: &Path,
    draft: &Path,
    number: usize,
    set: &RangeSet,
) -> Result<IpConfig, IpamError> {
    let marker = dir.join(format!("last_reserved_ip.{number}"));
    let last = fs::read_to_string(&marker)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    for ip in set.after(last) {
        let path = dir.join(ip.address.addr().to_string());
        match fs::hard_link(draft, &path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(failed("lease", &path)(e)),
        }
        if let Err(e) = write_file(&marker, &ip.address.addr().to_string()) {
            unlink(&path)?;
            return Err(e);
        }
        return Ok(ip);
    }
    Err(IpamError::Exhausted {
        range: set.to_string(),
    })
}

fn read_lease(path: &Path, address: IpAddr) -> Option<Lease> {
    let mut text = String::new();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    file.take(MAX_LEASE).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let container = lines.next()?.trim();
    let ifname = lines.next().unwrap_or("").trim();
    crate::spec::is_valid_name(container).then(|| Lease {
        address,
        container: container.to_owned(),
        ifname: ifname.to_owned(),
    })
}

fn lock(dir: &Path) -> Result<Flock<File>, IpamError> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed("open", &path))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| failed("lock", &path)(errno.into()))
}

/// The lock of a directory, if there is a directory.
fn lock_existing(dir: &Path) -> Result<Option<Flock<File>>, IpamError> {
    if dir.is_dir() {
        lock(dir).map(Some)
    } else {
        Ok(None)
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), IpamError> {
    OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(failed("write", path))
}

fn unlink(path: &Path) -> Result<(), IpamError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(e)),
        _ => Ok(()),
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IpamError {
    let path = path.to_owned();
    move |source| IpamError::Io { step, path, source }
}

#[cfg(test)]
mod tests;
