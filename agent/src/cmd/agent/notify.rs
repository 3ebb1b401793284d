//! Tells systemd how far the agent is, where its unit is of `Type=notify`, and with `WatchdogSec` that it still works. See
//! sd_notify(3) and sd_watchdog_enabled(3).

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::pod::directory::Pods;

/// The agent takes pods and answers.
pub(super) const READY: &str = "READY=1";
/// It is about to end.
pub(super) const STOPPING: &str = "STOPPING=1";

/// It works.
const ALIVE: &str = "WATCHDOG=1";

/// Says twice in the time that systemd gives that the agent works, as long as it does. systemd ends and restarts an agent
/// that does not; its pods run on. From the start on: a node that joins is `READY` before it has pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Watchdog {
    pods: Arc<OnceLock<Pods>>,
}

impl Watchdog {
    /// One that speaks, if anybody listens.
    pub(super) fn start() -> Self {
        let watchdog = Self::default();
        let variable = |name| std::env::var(name).ok();
        let own = std::process::id();
        if let Some(every) = period(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), own) {
            tracing::info!(?every, "systemd is told that the agent works");
            tokio::spawn(watchdog.clone().speak(every, || tell(ALIVE)));
        }
        watchdog
    }

    /// From now on the owner of these pods has to work as well.
    pub(super) fn look_at(&self, pods: Pods) {
        // There is one for each agent; a second one would change nothing.
        let _ = self.pods.set(pods);
    }

    async fn speak(self, every: Duration, alive: impl Fn()) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.pods.get().map_or(Ok(()), Pods::health) {
                Ok(()) => alive(),
                Err(error) => tracing::error!(error, "systemd is not told that the agent works"),
            }
        }
    }
}

/// Half of the time that systemd gives this process; none where it does not watch it.
fn period(micros: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let text = micros?;
    match text.parse() {
        Ok(micros @ 2..) => Some(Duration::from_micros(micros) / 2),
        _ => {
            tracing::warn!("environment variable WATCHDOG_USEC: {text:?} is no time");
            None
        }
    }
}

/// Says it, if anybody listens. Nothing depends on it, so a failure is no more than a line in the log.
pub(super) fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = send(socket.as_bytes(), state);
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %socket.display(), "cannot tell systemd: {state}");
    }
}

/// A name that begins with `@` is an abstract one.
fn send(socket: &[u8], state: &str) -> std::io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_of_this_process_is_spoken_to_twice_in_its_time() {
        for (micros, pid, want) in [
            (None, None, None),
            (Some("30000000"), None, Some(15)),
            (Some("30000000"), Some("7"), Some(15)),
            (Some("30000000"), Some("8"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
        ] {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            let every = period(owned(micros), owned(pid), 7);
            assert_eq!(every, want.map(Duration::from_secs), "{micros:?} {pid:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_whose_owner_of_pods_is_stuck_is_silent() {
        let watchdog = Watchdog::default();
        let spoken = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let heard = || spoken.swap(0, std::sync::atomic::Ordering::Relaxed);
        let alive = spoken.clone();
        let alive = move || {
            alive.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        tokio::spawn(watchdog.clone().speak(Duration::from_secs(15), alive));
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(heard(), 5);
        let pods = Pods::default();
        watchdog.look_at(pods.clone());
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(heard(), 40, "the owner has not begun");
        pods.owner_turns();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!((8..=13).contains(&heard()));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(heard(), 0);
        pods.owner_turns();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(heard(), 4);
    }

    #[test]
    fn whoever_listens_by_path_or_by_name_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("hanok-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(path.as_os_str().as_bytes(), READY).unwrap();
        send(format!("@{name}").as_bytes(), STOPPING).unwrap();
        for (socket, want) in [(by_path, READY), (by_name, STOPPING)] {
            let mut heard = [0; 64];
            let length = socket.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], want.as_bytes());
        }
        assert!(send(b"/nowhere/notify", READY).is_err());
    }
}
