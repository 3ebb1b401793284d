//! User, groups, capabilities, no_new_privs and the seccomp filter, in the one order that works.

use hanok_shim::protocol::Process;
use hanok_shim::sys::process::load_seccomp;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::channel::ResolvedUser;
use crate::failure::{Doing, Result};

/// Becomes the user, still with all capabilities: [`confine`] takes them.
pub(super) fn change_user(spec: &Process, user: &ResolvedUser) -> Result<()> {
    for capability in bits(!spec.capabilities.bounding) {
        match remove_capability_from_bounding_set(capability) {
            // The kernel counts them without gaps: this one and all after it are none.
            Err(Errno::INVAL) => break,
            done => done.doing(|| format!("drop {capability:?} from the bounding set"))?,
        }
    }
    set_keep_capabilities(true).doing(|| "keep capabilities")?;
    let groups: Vec<Gid> = user.groups.iter().map(|&g| Gid::from_raw(g)).collect();
    set_thread_groups(&groups).doing(|| "set supplementary groups")?;
    let gid = Gid::from_raw(user.gid);
    set_thread_res_gid(gid, gid, gid).doing(|| format!("set group {}", user.gid))?;
    let uid = Uid::from_raw(user.uid);
    set_thread_res_uid(uid, uid, uid).doing(|| format!("set user {}", user.uid))?;
    set_keep_capabilities(false).doing(|| "keep no capabilities")
}

/// Takes what was not granted and loads the filter. Without no_new_privs the filter needs CAP_SYS_ADMIN and
/// comes first, and must allow capset and prctl; with it, the filter is the very last call before execve.
pub(super) fn confine(spec: &Process) -> Result<()> {
    let all = capabilities(None)
        .doing(|| "read the capabilities")?
        .permitted;
    if spec.no_new_privileges {
        set_capability_sets(all, spec)?;
        set_no_new_privs(true).doing(|| "set no_new_privs")?;
        return load_filter(spec);
    }
    let sets = CapabilitySets {
        effective: all,
        permitted: all,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).doing(|| "raise capabilities")?;
    load_filter(spec)?;
    set_capability_sets(all, spec)
}

fn load_filter(spec: &Process) -> Result<()> {
    if spec.seccomp.is_empty() {
        return Ok(());
    }
    load_seccomp(&spec.seccomp, spec.seccomp_flags).doing(|| "load the seccomp filter")
}

/// What the process does not have itself (the shim's, or all of a user namespace) cannot be given, and is left out.
fn set_capability_sets(held: CapabilitySet, spec: &Process) -> Result<()> {
    let asked = &spec.capabilities;
    let set = |mask: u64| CapabilitySet::from_bits_retain(mask & held.bits());
    let permitted = set(asked.permitted);
    let sets = CapabilitySets {
        effective: set(asked.effective & asked.permitted),
        permitted,
        inheritable: set(asked.inheritable),
    };
    clear_ambient_capability_set().doing(|| "clear ambient capabilities")?;
    set_capabilities(None, sets).doing(|| "set capabilities")?;
    let ambient = asked.ambient & asked.permitted & asked.inheritable & held.bits();
    for capability in bits(ambient) {
        configure_capability_in_ambient_set(capability, true)
            .doing(|| format!("make {capability:?} ambient"))?;
    }
    Ok(())
}

/// Each capability of a mask.
fn bits(mask: u64) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS)
        .map(|bit| 1u64 << bit)
        .filter(move |bit| mask & bit != 0)
        .map(CapabilitySet::from_bits_retain)
}
