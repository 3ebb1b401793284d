//! The rigging of hanok's end-to-end stories and benches: a lab of network namespaces with a real control
//! plane, a registry, the images that the stories run, and what stories use to tell and to check.
//!
//! Reading order: [`lab`] makes the machines, [`image`] fills the registry, [`cluster`] is what a story sees,
//! [`leak`] is what it must not leave, [`runner`] runs it. Nothing here links the three hanok crates: the
//! built programs are run as a user would run them.

#![forbid(unsafe_code)]

pub mod bench;
pub mod cluster;
pub mod conformance;
pub mod golden;
pub mod image;
pub mod kubeconfig;
pub mod lab;
pub mod leak;
pub mod manifest;
pub mod network;
pub mod oci_conformance;
pub mod paths;
pub mod pki;
pub mod process;
pub mod program;
pub mod runner;
