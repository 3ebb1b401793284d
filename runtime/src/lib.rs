//! The container runtime: images, content store, snapshots, sandboxes, containers.
//!
//! It knows Linux and OCI, and nothing of pods in the Kubernetes sense. The agent calls [`api`] in process.
//!
//! # On disk: sandboxes and containers
//!
//! The layout is an interface: [`service`] finds everything again from it, and a person can read it. Every
//! JSON file is written whole (temporary file, rename); nothing below the run directory is synced, for it
//! dies with the boot as the processes do. Directories are for root only.
//!
//! ```text
//! RUN/sandboxes/<id>/                 made before the first side effect of a sandbox, removed after its last
//!   sandbox.json                      runtime: SandboxRecord; Making before anything is made, then Made, Stopped
//!   hostname                          runtime: the containers' /etc/hostname
//!   shim.sock                         runtime binds it, the shim listens
//!   shim.pid, shim.log                shim
//!   containers/<id>/
//!     container.json                  runtime: ContainerRecord; at creation, before the start, when it failed,
//!                                     after a change of its limits
//!     config.json                     runtime: OCI runtime specification; there once the container is created
//!     exit.json                       shim: how it ended (protocol::Exit), before anybody is told
//! RUN/broken/<id>/                    sandboxes whose record cannot be read, set aside by the runtime
//! ROOT/content, ROOT/images, ROOT/snapshots   durable: see [`content`], [`image::store`], [`snapshot::overlay`]
//! ROOT/image-mounts/<key>              runtime: the directory that an image is mounted on, as a volume
//! ROOT/volumes/<container>/<n>/       runtime: the n-th VOLUME of the image; removed with the container
//! ```

pub mod api;
pub mod cgroup;
pub mod container;
pub mod content;
pub mod image;
pub mod inspect;
mod json;
pub mod lsm;
pub mod oci;
mod oom;
pub mod registry;
pub mod sandbox;
pub mod seccomp;
pub mod service;
pub mod shim_client;
pub mod snapshot;
pub mod spec;
pub mod stats;
pub mod unpack;
