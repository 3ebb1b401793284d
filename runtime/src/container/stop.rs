//! StopContainer: a signal, a grace period, a kill.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hanok_shim::protocol::{Exit, Request};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Container, Phase};
use crate::api::{ContainerId, Error, Result};
use crate::service::{Core, chain, record};
use crate::shim_client;

const SIGKILL: i32 = libc::SIGKILL;

/// How long a killed process may take to end. It sits in an uninterruptible system call if it takes longer
/// than this, and then nobody can do anything but try again later.
const AFTER_KILL: Duration = Duration::from_secs(30);

/// Returns when the container does not run any more. Several stops of one container do not disturb each
/// other; the one with the shortest grace period kills.
pub(crate) async fn stop(core: &Arc<Core>, id: &ContainerId, grace: Duration) -> Result<()> {
    let container = core.registry.container(id).ok_or_else(|| Error::NotFound {
        kind: "container",
        id: id.0.clone(),
    })?;
    let mut phase = container.watch();
    // A start under way is waited for: its outcome decides.
    let _ = phase.wait_for(|phase| *phase != Phase::Starting).await;
    match container.phase() {
        Phase::Starting | Phase::Running { .. } => {}
        Phase::Unknown => return end_unknown(core, &container).await,
        Phase::Created | Phase::Exited(_) | Phase::Failed(_) => return Ok(()),
    }
    if !grace.is_zero() {
        let signal = signal_number(&container.record().stop_signal).unwrap_or(libc::SIGTERM);
        signal_container(&container, signal, false).await?;
        if over(&mut phase, grace).await {
            return Ok(());
        }
    }
    kill(&container, &mut phase).await
}

/// Nobody tells how a container ends whose shim is gone; but its cgroup can be emptied, and then it has ended.
async fn end_unknown(core: &Core, container: &Container) -> Result<()> {
    let id = &container.id;
    core.cgroups
        .remove(&container.cgroup())
        .await
        .map_err(|error| {
            Error::Internal(format!("cannot stop container {id}: {}", chain(&error)))
        })?;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let exit = Exit {
        container: id.0.clone(),
        code: super::UNKNOWN_EXIT,
        signal: SIGKILL,
        oom_killed: false,
        finished_at_ns: i64::try_from(now.as_nanos()).unwrap_or(i64::MAX),
    };
    record::write(&super::exit_file(&container.dir), &exit)
        .map_err(|error| Error::Internal(format!("cannot record the end of {id}: {error}")))?;
    container.exited(exit);
    core.ring(&container.pod);
    Ok(())
}

/// Kills every process of the container and waits for its end.
pub(super) async fn kill(container: &Container, phase: &mut watch::Receiver<Phase>) -> Result<()> {
    signal_container(container, SIGKILL, true).await?;
    if over(phase, AFTER_KILL).await {
        return Ok(());
    }
    let id = &container.id;
    Err(Error::Internal(format!(
        "container {id} did not end within 30 s after SIGKILL"
    )))
}

async fn over(phase: &mut watch::Receiver<Phase>, patience: Duration) -> bool {
    timeout(patience, phase.wait_for(Phase::is_over))
        .await
        .is_ok()
}

async fn signal_container(container: &Container, signal: i32, all: bool) -> Result<()> {
    // Without a shim there is no exit to wait for, and the phase says so already or in a moment.
    let Some(shim) = container.sandbox.shim() else {
        return Ok(());
    };
    let request = Request::Kill {
        id: container.id.0.clone(),
        signal,
        all,
    };
    match shim.order(&request).await {
        Ok(()) | Err(shim_client::ShimError::Gone { .. }) => Ok(()),
        Err(error) => {
            let id = &container.id;
            Err(Error::Internal(format!(
                "cannot signal container {id}: {}",
                chain(&error)
            )))
        }
    }
}

/// A signal as images write it: a number, or a name with or without SIG, real-time ones as RTMIN+n and
/// RTMAX-n. None when it is nothing of that; then it is TERM, as an image must not keep a pod from ending.
fn signal_number(written: &str) -> Option<i32> {
    const MAX: i32 = 64;
    const RTMIN: i32 = 34;
    let upper = written.trim().to_ascii_uppercase();
    if let Ok(number) = upper.parse::<i32>() {
        return (1..=MAX).contains(&number).then_some(number);
    }
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let lowest = name.strip_prefix("RTMIN").map(|offset| (RTMIN, offset));
    let real_time = lowest.or_else(|| name.strip_prefix("RTMAX").map(|offset| (MAX, offset)));
    if let Some((base, offset)) = real_time {
        let offset = if offset.is_empty() {
            0
        } else {
            offset.parse::<i32>().ok()?
        };
        let number = base.checked_add(offset)?;
        return (RTMIN..=MAX).contains(&number).then_some(number);
    }
    named(name)
}

/// The name of a signal as images write it, as the API has it; TERM's when it is none.
pub(super) fn signal_name(written: &str) -> String {
    let number = signal_number(written).unwrap_or(libc::SIGTERM);
    if let Ok(signal) = nix::sys::signal::Signal::try_from(number) {
        return signal.as_str().to_owned();
    }
    // The API counts real-time signals from the nearer end.
    match number {
        34 => "SIGRTMIN".to_owned(),
        35..=49 => format!("SIGRTMIN+{}", number - 34),
        64 => "SIGRTMAX".to_owned(),
        _ => format!("SIGRTMAX-{}", 64 - number),
    }
}

fn named(name: &str) -> Option<i32> {
    format!("SIG{name}")
        .parse::<nix::sys::signal::Signal>()
        .ok()
        .map(|signal| signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_as_images_write_them() {
        for (written, expected) in [
            ("SIGTERM", Some(15)),
            ("quit", Some(3)),
            ("SIGUSR1", Some(10)),
            ("WINCH", Some(28)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN", Some(34)),
            ("SIGRTMAX-1", Some(63)),
            ("RTMIN+31", None),
            ("", None),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("SIGFOO", None),
            ("é€é", None),
        ] {
            assert_eq!(signal_number(written), expected, "{written:?}");
        }
    }

    #[test]
    fn signals_are_named_as_the_api_names_them() {
        for (written, expected) in [
            ("", "SIGTERM"),
            ("nonsense", "SIGTERM"),
            ("usr1", "SIGUSR1"),
            ("9", "SIGKILL"),
            ("37", "SIGRTMIN+3"),
            ("SIGRTMAX-1", "SIGRTMAX-1"),
            ("RTMIN", "SIGRTMIN"),
        ] {
            assert_eq!(signal_name(written), expected, "{written:?}");
        }
    }
}
