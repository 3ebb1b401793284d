//! What a running shim looks like among the processes. Whoever has lost its files finds it by this.

/// Its name, `/proc/PID/comm`: shorter than the 16 bytes that the kernel keeps.
pub const NAME: &str = "hanok-shim";

/// The first argument of the daemon's command line. [`STATE_DIR`] follows, then the directory.
pub const SERVE: &str = "serve";

/// The option before the directory of a shim's record.
pub const STATE_DIR: &str = "--state-dir";
