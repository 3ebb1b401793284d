//! Whom a process runs as, by the container's own passwd and group files.
//!
//! Those files belong to the image and, later, to whatever runs in the container: they are opened as regular
//! files only, read up to a limit, and lines that are not as they should be count as absent. Digits are
//! always a number and never a name, and a number is in 0..=2^31-1 or an error (CVE-2024-40635,
//! CVE-2026-30892).

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use hanok_shim::protocol::{Process, User};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

use super::root;
use crate::channel::ResolvedUser;
use crate::failure::{Doing, Failure, Result};
use crate::resolve;

/// Longest passwd or group file that is read.
const MAX_FILE: u64 = 4 << 20;

/// Most supplementary groups; NFS and the report's size allow no more.
const MAX_GROUPS: usize = 4096;

/// Largest id: the kernel's are 32 bits wide, but -1 means "leave it", and signed readers exist.
const MAX_ID: u32 = i32::MAX as u32;

/// One line of passwd.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

/// The user of a process that is all numbers, as an exec has it from the container: nothing is to be looked up, not
/// even a home.
pub(super) fn known(spec: &Process) -> Option<ResolvedUser> {
    let User {
        spec: text,
        gid: Some(gid),
        additional_gids,
        strict_groups: true,
    } = &spec.user
    else {
        return None;
    };
    let uid = number(text).ok()??;
    let home = spec.env.iter().find_map(|e| e.strip_prefix("HOME="))?;
    let mut groups = vec![*gid];
    groups.extend(additional_gids);
    unique(&mut groups);
    let in_range = groups.len() <= MAX_GROUPS && groups.iter().all(|&gid| gid <= MAX_ID);
    (in_range && !home.is_empty()).then(|| ResolvedUser {
        uid,
        gid: *gid,
        groups,
        home: home.to_owned(),
    })
}

/// Looks the user up in the files of the root that this process sees.
pub(super) fn resolve(user: &User) -> Result<ResolvedUser> {
    let root = root()?;
    let passwd = read(&root, "/etc/passwd")?;
    // Only names need the group file.
    let group = || read(&root, "/etc/group");
    resolve_in(user, &passwd, group)
}

fn resolve_in(
    user: &User,
    passwd: &str,
    group: impl Fn() -> Result<String>,
) -> Result<ResolvedUser> {
    let (user_part, group_part) = match user.spec.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|g| !g.is_empty())),
        None => (user.spec.as_str(), None),
    };
    let account = find_account(user_part, passwd)?;
    let gid = match (user.gid, group_part) {
        (Some(gid), _) => check_id(gid)?,
        (None, Some(part)) => match number(part)? {
            Some(gid) => gid,
            None => find_group(part, &group()?)?,
        },
        (None, None) => account.gid,
    };
    let mut groups = vec![gid];
    if !user.strict_groups && !account.name.is_empty() {
        groups.extend(groups_of(&account.name, &group()?));
    }
    for &gid in &user.additional_gids {
        groups.push(check_id(gid)?);
    }
    unique(&mut groups);
    if groups.len() > MAX_GROUPS {
        let message = format!("user {:?} has more than {MAX_GROUPS} groups", user.spec);
        return Err(Failure::invalid(message));
    }
    Ok(ResolvedUser {
        uid: account.uid,
        gid,
        groups,
        home: account.home,
    })
}

/// A number needs no account; a name does. The empty string is root, as images mean it.
fn find_account(part: &str, passwd: &str) -> Result<Account> {
    let part = if part.is_empty() { "0" } else { part };
    let mut accounts = passwd.lines().filter_map(account);
    if let Some(uid) = number(part)? {
        let unknown = || Account {
            name: String::new(),
            uid,
            gid: 0,
            home: "/".to_owned(),
        };
        return Ok(accounts.find(|a| a.uid == uid).unwrap_or_else(unknown));
    }
    check_name(part)?;
    accounts.find(|a| a.name == part).ok_or_else(|| {
        Failure::invalid(format!(
            "user {part:?} is not in the container's /etc/passwd"
        ))
    })
}

fn find_group(part: &str, group: &str) -> Result<u32> {
    check_name(part)?;
    let mut found = group
        .lines()
        .filter_map(group_line)
        .filter(|(name, ..)| *name == part);
    found.next().map(|(_, gid, _)| gid).ok_or_else(|| {
        Failure::invalid(format!(
            "group {part:?} is not in the container's /etc/group"
        ))
    })
}

fn groups_of(name: &str, group: &str) -> Vec<u32> {
    let has = |members: &str| members.split(',').any(|member| member == name);
    group
        .lines()
        .filter_map(group_line)
        .filter(|(_, _, members)| has(members))
        .map(|(_, gid, _)| gid)
        .collect()
}

/// A run of digits as an id, none when it is not one.
fn number(text: &str) -> Result<Option<u32>> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(id) if id <= MAX_ID => Ok(Some(id)),
        _ => Err(Failure::invalid(format!(
            "id {text:?} is larger than {MAX_ID}"
        ))),
    }
}

fn check_id(id: u32) -> Result<u32> {
    if id > MAX_ID {
        return Err(Failure::invalid(format!("id {id} is larger than {MAX_ID}")));
    }
    Ok(id)
}

/// Names that could be meant as a number (`-1`, `+0`, ` 0`) are refused, whatever the files say.
fn check_name(name: &str) -> Result<()> {
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let rest = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ':' | ',' | '/');
    if !first || name.contains(rest) {
        return Err(Failure::invalid(format!(
            "{name:?} is neither an id nor a name"
        )));
    }
    Ok(())
}

fn account(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = number(fields.nth(1)?).ok()??;
    let gid = number(fields.next()?).ok()??;
    let home = fields.nth(1).unwrap_or("/");
    let home = if home.starts_with('/') && !home.contains(char::is_control) {
        home
    } else {
        "/"
    };
    Some(Account {
        name,
        uid,
        gid,
        home: home.to_owned(),
    })
}

/// Name, id, members.
fn group_line(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let gid = number(fields.nth(1)?).ok()??;
    Some((name, gid, fields.next().unwrap_or("")))
}

fn unique(groups: &mut Vec<u32>) {
    let mut seen = std::collections::BTreeSet::new();
    groups.retain(|gid| seen.insert(*gid));
}

/// A file of the container; empty when there is none.
fn read(root: &OwnedFd, path: &str) -> Result<String> {
    // A fifo must not block, a terminal must not become ours.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match resolve::open(root.as_fd(), Path::new(path), flags) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(String::new()),
        done => done.doing(|| format!("open the container's {path}"))?,
    };
    let stat = fstat(&file).doing(|| format!("stat the container's {path}"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Failure::invalid(format!(
            "the container's {path} is not a regular file"
        )));
    }
    // With room for one more, or the end would be looked for in a piece of its own.
    let size = u64::try_from(stat.st_size).unwrap_or(0).min(MAX_FILE);
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    std::fs::File::from(file)
        .take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .doing(|| format!("read the container's {path}"))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Failure::invalid(format!(
            "the container's {path} is larger than {MAX_FILE} bytes"
        )));
    }
    // Without a second copy where it can be: this counts as the container's memory.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests;
