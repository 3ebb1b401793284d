//! Unpacks the entries of one layer into a tree, in overlayfs' form.
//!
//! Whiteouts become character devices 0:0, opaque marks the attribute `trusted.overlay.opaque`; both speak
//! of the layers below only, wherever they stand in the tar. The last of several entries with one name
//! wins. Owner first, then mode (chown clears setuid), then attributes (chown clears capabilities), then
//! times. Nothing is ever opened, changed or linked through a symbolic link.

use std::ffi::OsStr;
use std::io::BufRead;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use super::tar::{Entry, Kind, Reader};
use super::tree::{Dir, Missing, Tree, components, make_whiteout, set_opaque, timestamps};
use super::{Limits, UnpackError, Usage};
use crate::unpack::lower::is_whiteout;

/// How much is written between two looks at the free space.
const CHECK_EVERY: u64 = 64 << 20;
/// Longest value of an extended attribute that Linux takes.
const MAX_XATTR: usize = 64 << 10;

/// Unpacks entries.
#[derive(Debug)]
pub(crate) struct Extractor<'a> {
    tree: &'a mut Tree,
    limits: Limits,
    usage: Usage,
    unchecked: u64,
}

/// Where an entry goes.
struct Place<'a> {
    dir: Rc<Dir>,
    name: &'a OsStr,
    /// The entry's path, for errors.
    path: &'a [u8],
}

impl Place<'_> {
    fn fail(&self, verb: &'static str) -> impl Fn(Errno) -> UnpackError + '_ {
        move |e| UnpackError::tree(verb, self.path, e)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.dir.fd.as_fd()
    }
}

impl<'a> Extractor<'a> {
    pub(crate) fn new(tree: &'a mut Tree, limits: Limits) -> Self {
        Self {
            tree,
            limits,
            usage: Usage::default(),
            unchecked: CHECK_EVERY,
        }
    }

    /// Unpacks everything; returns what it takes on disk.
    pub(crate) fn run<R: BufRead>(mut self, tar: &mut Reader<R>) -> Result<Usage, UnpackError> {
        while let Some(entry) = tar.next_entry()? {
            self.usage.inodes += 1;
            if self.usage.inodes > self.limits.entries {
                return Err(UnpackError::TooMany(self.limits.entries));
            }
            self.entry(&entry, tar)?;
        }
        tar.drain()?;
        Ok(self.usage)
    }

    fn entry<R: BufRead>(&mut self, entry: &Entry, tar: &mut Reader<R>) -> Result<(), UnpackError> {
        let names = components(&entry.path)?;
        let Some((name, parents)) = names.split_last() else {
            return self.root(entry);
        };
        // Bookkeeping of aufs; only the opaque mark has a meaning for others.
        let aufs = |name: &&[u8]| name.starts_with(b".wh..wh.");
        if parents.iter().any(aufs) || (aufs(name) && *name != b".wh..wh..opq") {
            return Ok(());
        }
        let whiteout = name.strip_prefix(b".wh.");
        if matches!(whiteout, Some(b"" | b"." | b"..")) {
            return Err(UnpackError::unsafe_path(
                &entry.path,
                "it is a whiteout of no name",
            ));
        }
        let place = Place {
            dir: self.tree.dir(parents, Missing::Create)?,
            name: OsStr::from_bytes(whiteout.unwrap_or(name)),
            path: &entry.path,
        };
        if *name == b".wh..wh..opq" {
            return set_opaque(place.fd()).map_err(place.fail("mark the directory of"));
        }
        if whiteout.is_some() {
            return whiteout_at(&place);
        }
        match entry.kind {
            Kind::Dir => self.directory(entry, &place),
            Kind::File => self.file(entry, &place, tar),
            Kind::HardLink => self.hard_link(entry, &place),
            Kind::Symlink => self.symlink(entry, &place),
            Kind::Char | Kind::Block | Kind::Fifo => self.node(entry, &place),
        }
    }

    /// An entry for the root itself: a directory, of which only the metadata counts.
    fn root(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        if entry.kind != Kind::Dir {
            return Err(UnpackError::unsafe_path(
                &entry.path,
                "it would replace the root directory",
            ));
        }
        let root = Rc::clone(self.tree.root());
        self.dir_metadata(entry, root.fd.as_fd(), &root.path)
    }

    fn dir_metadata(
        &mut self,
        entry: &Entry,
        dir: BorrowedFd<'_>,
        real: &std::path::Path,
    ) -> Result<(), UnpackError> {
        set_metadata(entry, dir)?;
        self.tree.implicit.remove(real);
        let times = timestamps(entry.mtime, entry.mtime_nanos);
        self.tree.times.insert(real.to_owned(), times);
        Ok(())
    }

    fn directory(&mut self, entry: &Entry, place: &Place<'_>) -> Result<(), UnpackError> {
        let mut replaced = false;
        let mut made = rustix::fs::mkdirat(place.fd(), place.name, Mode::from_raw_mode(0o700));
        if made == Err(Errno::EXIST) {
            let stat = stat(place)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                made = Ok(());
            } else {
                self.clear(place, &stat)?;
                replaced = true;
                made = rustix::fs::mkdirat(place.fd(), place.name, Mode::from_raw_mode(0o700));
            }
        }
        made.map_err(place.fail("make"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(place.fd(), place.name, flags, Mode::empty())
            .map_err(place.fail("open"))?;
        if replaced {
            // What this name had below was hidden by the file or the whiteout before, and stays so.
            set_opaque(dir.as_fd()).map_err(place.fail("mark"))?;
        }
        let real = place.dir.path.join(place.name);
        self.dir_metadata(entry, dir.as_fd(), &real)
    }

    fn file<R: BufRead>(
        &mut self,
        entry: &Entry,
        place: &Place<'_>,
        tar: &mut Reader<R>,
    ) -> Result<(), UnpackError> {
        let file = self.make(place, || {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(place.fd(), place.name, flags, Mode::from_raw_mode(0o600))
        })?;
        loop {
            let data = tar.data()?;
            if data.is_empty() {
                break;
            }
            let n = rustix::io::write(&file, data).map_err(place.fail("write"))?;
            tar.consume(n);
            self.written(n as u64, &file)?;
        }
        set_metadata(entry, file.as_fd())?;
        let times = timestamps(entry.mtime, entry.mtime_nanos);
        rustix::fs::futimens(&file, &times).map_err(place.fail("set the time of"))
    }

    /// Counts bytes, and looks at the free space now and then: a full disk harms every pod of the node.
    fn written(&mut self, bytes: u64, file: &OwnedFd) -> Result<(), UnpackError> {
        self.usage.bytes += bytes;
        self.unchecked += bytes;
        if self.unchecked < CHECK_EVERY {
            return Ok(());
        }
        self.unchecked = 0;
        let fs = rustix::fs::fstatvfs(file).map_err(|e| UnpackError::os(&e.into()))?;
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        if free < self.limits.keep_free {
            return Err(UnpackError::NoSpace {
                free,
                keep: self.limits.keep_free,
            });
        }
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, place: &Place<'_>) -> Result<(), UnpackError> {
        let target = OsStr::from_bytes(&entry.link);
        self.make(place, || {
            rustix::fs::symlinkat(target, place.fd(), place.name)
        })?;
        self.own(entry, place)
    }

    fn node(&mut self, entry: &Entry, place: &Place<'_>) -> Result<(), UnpackError> {
        let kind = match entry.kind {
            Kind::Char => FileType::CharacterDevice,
            Kind::Block => FileType::BlockDevice,
            _ => FileType::Fifo,
        };
        let device = rustix::fs::makedev(entry.device.0, entry.device.1);
        self.make(place, || {
            rustix::fs::mknodat(
                place.fd(),
                place.name,
                kind,
                Mode::from_raw_mode(0o600),
                device,
            )
        })?;
        self.own(entry, place)?;
        // There is no fchmodat that does not follow; a descriptor of the node itself and its name in
        // /proc do the same, without opening the device.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = rustix::fs::openat(place.fd(), place.name, flags, Mode::empty())
            .map_err(place.fail("open"))?;
        let path = format!("/proc/self/fd/{}", node.as_raw_fd());
        rustix::fs::chmod(path, Mode::from_raw_mode(entry.mode)).map_err(place.fail("chmod"))
    }

    /// Sets owner and time of something that is not opened.
    fn own(&self, entry: &Entry, place: &Place<'_>) -> Result<(), UnpackError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(place.fd(), place.name, Some(uid), Some(gid), flags)
            .map_err(place.fail("set the owner of"))?;
        let times = timestamps(entry.mtime, entry.mtime_nanos);
        rustix::fs::utimensat(place.fd(), place.name, &times, flags)
            .map_err(place.fail("set the time of"))
    }

    fn hard_link(&mut self, entry: &Entry, place: &Place<'_>) -> Result<(), UnpackError> {
        let target = components(&entry.link)?;
        let missing = || UnpackError::LinkTarget {
            path: String::from_utf8_lossy(&entry.path).into_owned(),
            target: String::from_utf8_lossy(&entry.link).into_owned(),
        };
        let (name, parents) = target.split_last().ok_or_else(missing)?;
        let dir = self
            .tree
            .dir(parents, Missing::Fail)
            .map_err(|_| missing())?;
        let name = OsStr::from_bytes(name);
        let source =
            rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if FileType::from_raw_mode(source.st_mode) == FileType::Directory || is_whiteout(&source) {
            return Err(missing());
        }
        if let Ok(old) = stat(place)
            && (old.st_dev, old.st_ino) == (source.st_dev, source.st_ino)
        {
            return Ok(());
        }
        self.make(place, || {
            rustix::fs::linkat(&dir.fd, name, place.fd(), place.name, AtFlags::empty())
        })
    }

    /// Makes a name that must not exist; what this layer put there before is removed first.
    fn make<T>(
        &mut self,
        place: &Place<'_>,
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> Result<T, UnpackError> {
        let mut made = make();
        if matches!(made, Err(Errno::EXIST)) {
            let old = stat(place)?;
            self.clear(place, &old)?;
            made = make();
        }
        made.map_err(place.fail("make"))
    }

    fn clear(&mut self, place: &Place<'_>, old: &Stat) -> Result<(), UnpackError> {
        self.tree.forget();
        if FileType::from_raw_mode(old.st_mode) != FileType::Directory {
            return rustix::fs::unlinkat(place.fd(), place.name, AtFlags::empty())
                .map_err(place.fail("replace"));
        }
        // The standard library's walk goes by descriptors and does not follow links below.
        let parent = format!("/proc/self/fd/{}", place.fd().as_raw_fd());
        std::fs::remove_dir_all(std::path::Path::new(&parent).join(place.name))
            .map_err(|e| UnpackError::os(&e))
    }
}

fn whiteout_at(place: &Place<'_>) -> Result<(), UnpackError> {
    match make_whiteout(place.fd(), place.name) {
        Err(Errno::EXIST) => {}
        other => return other.map_err(place.fail("make")),
    }
    // The name is new in this layer as well. A file hides what is below by itself.
    if FileType::from_raw_mode(stat(place)?.st_mode) != FileType::Directory {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(place.fd(), place.name, flags, Mode::empty())
        .map_err(place.fail("open"))?;
    set_opaque(dir.as_fd()).map_err(place.fail("mark"))
}

fn stat(place: &Place<'_>) -> Result<Stat, UnpackError> {
    rustix::fs::statat(place.fd(), place.name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(place.fail("look up"))
}

/// Owner, mode and attributes of an open file or directory.
fn set_metadata(entry: &Entry, file: BorrowedFd<'_>) -> Result<(), UnpackError> {
    let fail = |verb| move |e| UnpackError::tree(verb, &entry.path, e);
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(fail("set the owner of"))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode)).map_err(fail("chmod"))?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| xattr_allowed(name)) {
        if value.len() > MAX_XATTR {
            return Err(UnpackError::unsafe_path(
                &entry.path,
                "an extended attribute is too long",
            ));
        }
        rustix::fs::fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty())
            .map_err(fail("set an extended attribute of"))?;
    }
    Ok(())
}

/// File capabilities and what users may set. Never what steers overlayfs or a security module.
fn xattr_allowed(name: &[u8]) -> bool {
    let user = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    (user || name == b"security.capability") && name.len() <= 255 && !name.contains(&0)
}
