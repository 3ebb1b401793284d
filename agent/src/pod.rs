//! The pod core: from desired pods and what the runtime has, to containers that run and a status that says so.
//!
//! ```text
//! PodUpdate ─► workers (one owner of the set) ─► worker (one task per pod UID, latest wins)
//!     worker: desired + Observation + clock ─► actions::plan (pure) ─► sync (acts on the runtime)
//!     worker: desired + Observation + Facts ─► status::build (pure) ─► StatusSink
//!     prober: what runs ─► verdicts ─► worker
//! ```
//! Doorbells (runtime, objects, timers, finished operations) only wake a worker; it looks for itself.
//! Everything a worker must not forget is in the runtime's records (labels, annotations) or in the pod's
//! status, so that a new agent goes on where a killed one was.

pub mod actions;
pub mod admit;
pub mod app_armor;
pub mod back_off;
mod command;
pub mod config;
pub mod credentials;
pub mod directory;
pub mod files;
pub mod hooks;
mod http;
pub mod labels;
pub mod memory;
pub mod observation;
mod oom;
pub mod probe;
mod prober;
pub mod resize;
pub mod resources;
pub mod settings;
pub mod spec;
pub mod start_order;
pub mod status;
pub mod stop_order;
mod storage;
mod sync;
pub mod users;
mod worker;
pub mod workers;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod sample;
#[cfg(test)]
mod sim;

pub use directory::Pods;
pub use settings::{Deps, Settings};
pub(crate) use sync::sandbox::network_not_ready;
pub use workers::start;
