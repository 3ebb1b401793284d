//! Bundles run by the OCI command line's code, as root, with the built `hanok-shim`. Hooks need a process with one
//! thread, which a test is not: the conformance programs try them.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "oci/rig.rs"]
mod rig;

#[path = "oci/change.rs"]
mod change;
#[path = "oci/confine.rs"]
mod confine;
#[path = "../copied_program.rs"]
mod copied_program;
#[path = "oci/life.rs"]
mod life;
#[path = "../static_programs.rs"]
mod static_programs;
#[path = "oci/wrong.rs"]
mod wrong;
