//! The static `hanok-shim` and `hanok-pause` for tests that run containers; a module of each such test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Directory of the static programs: of `HANOK_PROGRAMS`, or built at first use.
pub(crate) fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        if let Some(built) = std::env::var_os("HANOK_PROGRAMS") {
            return built.into();
        }
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
        let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut scripts = above.map(|directory| directory.join("runtime/build-static.sh"));
        let script = scripts.find(|script| script.exists()).unwrap();
        // Flags of the test's own build must not reach the static one.
        let status = Command::new(script)
            .arg(&out)
            .env_remove("RUSTFLAGS")
            .status();
        assert!(status.unwrap().success());
        out
    })
}
