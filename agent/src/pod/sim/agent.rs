//! An agent of a simulation: what it sees of the world, and how its calls fare.

use std::future::pending;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use hanok_runtime::api::{ContainerId, Error, PodUid, Result, SandboxId};
use tokio::time::sleep;

use super::laws::Flight;
use super::world::{Sim, World};

/// What one agent sees of the world.
#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) sim: Arc<Sim>,
    pub(super) number: u32,
}

impl Agent {
    /// The world, for as long as the agent lives.
    pub(super) async fn world(&self) -> MutexGuard<'_, World> {
        if let Some(world) = self.living() {
            return world;
        }
        pending().await
    }

    /// The same, for calls that do not wait.
    pub(super) fn living(&self) -> Option<MutexGuard<'_, World>> {
        Some(self.sim.world()).filter(|world| world.agent == self.number)
    }

    /// A call takes its time.
    pub(super) async fn pause(&self, uid: Option<&PodUid>) {
        let wait = {
            let mut world = self.world().await;
            let slow = world.weather.slow;
            let wait = match () {
                () if !world.chance.percent(slow) => 0,
                () if world.chance.percent(70) => world.chance.between(1, 30),
                () if world.chance.percent(85) => world.chance.between(30, 2000),
                () => world.chance.between(2000, 12_000),
            };
            if let Some(uid) = uid {
                let now = world.now;
                world.laws.delayed(uid, now, wait);
            }
            wait
        };
        if wait > 0 {
            sleep(Duration::from_millis(wait)).await;
        }
    }

    /// A call fails.
    pub(super) async fn fault(&self, what: &str, uid: &PodUid) -> Result<()> {
        let mut world = self.world().await;
        let errors = world.weather.errors;
        if !world.chance.percent(errors) {
            return Ok(());
        }
        world.say(format_args!("  {what} fails"));
        world.laws.fault(uid);
        Err(Error::Internal(format!("{what}: the weather is bad")))
    }

    /// The pod of a sandbox, or of a container.
    pub(super) async fn pod_of_sandbox(&self, id: &SandboxId) -> Option<PodUid> {
        let mut world = self.world().await;
        world
            .machine
            .sandbox(id)
            .map(|sandbox| sandbox.config.uid.clone())
    }

    pub(super) async fn pod_of(&self, id: &ContainerId) -> Option<PodUid> {
        let mut world = self.world().await;
        world.machine.record(id).map(|record| record.pod.clone())
    }

    pub(super) async fn take_off(&self, uid: &PodUid, what: String) -> Flight {
        self.world().await.take_off(uid, &what);
        Flight::new(self.clone(), uid.clone(), what)
    }
}
