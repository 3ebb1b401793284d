//! Following a shim: its events update what we know, and ring.

use std::sync::{Arc, Weak};

use hanok_shim::protocol::Event;

use super::Sandbox;
use crate::container;
use crate::service::Core;
use crate::shim_client::Events;

/// Follows until the shim or the runtime ends. The task does not keep the runtime alive.
pub(crate) fn follow(core: &Arc<Core>, sandbox: &Arc<Sandbox>, mut events: Events) {
    let stopped = core.stopped.clone();
    let (core, sandbox) = (Arc::downgrade(core), sandbox.clone());
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = stopped.cancelled() => return,
            };
            let Some(core) = Weak::upgrade(&core) else {
                return;
            };
            match &event {
                Ok(Event::ContainerExited { exit }) => {
                    if let Some(container) = core.registry.container_by_id(&exit.container) {
                        container.exited(exit.clone());
                    }
                }
                Ok(Event::SandboxExited) => sandbox.with_record(|record| record.pid = 0),
                Err(_) => {
                    // The shim has ended, asked or not. What it knew is in the exit records.
                    sandbox.set_shim(None);
                    sandbox.with_record(|record| record.pid = 0);
                    container::settle(&core, &sandbox.id);
                }
            }
            core.ring(&sandbox.with_record(|record| record.config.uid.clone()));
            if event.is_err() {
                return;
            }
        }
    });
}
