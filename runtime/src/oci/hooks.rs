//! Hooks: from the specification to programs that are run at their time.

use hanok_shim::hook::{Hook, HookError};
use oci_spec::runtime::Hooks;

use super::record::{Record, Status};
use super::{OciError, Result};

/// The hooks of a bundle by where they run.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// prestart and createRuntime: on the node, before the root is entered.
    pub(super) create_runtime: Vec<Hook>,
    /// In the container's namespaces, before the root is entered.
    pub(super) create_container: Vec<Hook>,
    /// In the container, before its program.
    pub(super) start_container: Vec<Hook>,
    /// On the node, after the start.
    pub(super) poststart: Vec<Hook>,
    /// On the node, after the deletion.
    pub(super) poststop: Vec<Hook>,
}

/// Translates them; those that run by another process get their state here.
pub(super) fn plan(given: Option<&Hooks>, record: &Record) -> Result<Plan> {
    let Some(given) = given else {
        return Ok(Plan::default());
    };
    let list = |hooks: &Option<Vec<oci_spec::runtime::Hook>>, status| {
        let one = |given| hook(given, record, status);
        hooks
            .iter()
            .flatten()
            .map(one)
            .collect::<Result<Vec<Hook>>>()
    };
    let mut create_runtime = list(given.prestart(), Status::Creating)?;
    create_runtime.extend(list(given.create_runtime(), Status::Creating)?);
    Ok(Plan {
        create_runtime,
        create_container: list(given.create_container(), Status::Creating)?,
        start_container: list(given.start_container(), Status::Created)?,
        poststart: list(given.poststart(), Status::Running)?,
        poststop: list(given.poststop(), Status::Stopped)?,
    })
}

fn hook(given: &oci_spec::runtime::Hook, record: &Record, status: Status) -> Result<Hook> {
    let path = given.path();
    if !path.is_absolute() {
        return Err(OciError::Config(format!(
            "hook {path:?} is not an absolute path"
        )));
    }
    let timeout = match given.timeout() {
        None => None,
        Some(seconds) => match u32::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Some(seconds),
            _ => {
                let message = format!("hook {path:?}: timeout {seconds} is not positive");
                return Err(OciError::Config(message));
            }
        },
    };
    Ok(Hook {
        path: path.to_string_lossy().into_owned(),
        args: given.args().clone().unwrap_or_default(),
        env: given.env().clone(),
        timeout,
        state: record.hook_state(status),
    })
}

/// Runs them all in order; the first that fails is the error.
pub(super) fn run(hooks: &[Hook], pid: i32) -> Result<()> {
    hooks.iter().try_for_each(|hook| Ok(hook.run(pid)?))
}

/// Runs them all in order, whatever fails: what comes after the start is too late to be undone.
pub(super) fn run_all(hooks: &[Hook], pid: i32) -> Vec<HookError> {
    hooks
        .iter()
        .filter_map(|hook| hook.run(pid).err())
        .collect()
}
