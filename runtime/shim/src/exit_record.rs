//! `exit.json` in a container's directory: how it ended, for whoever was not there to hear.
//!
//! Fields are those of [`Exit`]. Written to a temporary file and renamed, before the exit is announced. The
//! directory lives as long as the boot, so that nothing is synced.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hanok_shim::protocol::Exit;

/// Its path.
pub(crate) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("exit.json")
}

/// Writes it.
pub(crate) fn write(state_dir: &Path, exit: &Exit) -> io::Result<()> {
    let temporary = state_dir.join(".exit.json.tmp");
    fs::write(&temporary, json(exit))?;
    fs::rename(temporary, path(state_dir))
}

/// Container ids have no character that JSON escapes; StartContainer sees to it.
fn json(exit: &Exit) -> String {
    let Exit {
        container,
        code,
        signal,
        oom_killed,
        finished_at_ns,
    } = exit;
    format!(
        "{{\"container\":\"{container}\",\"code\":{code},\"signal\":{signal},\
         \"oom_killed\":{oom_killed},\"finished_at_ns\":{finished_at_ns}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_has_the_fields_of_the_protocol() {
        let dir = tempfile::tempdir().unwrap();
        let exit = Exit {
            container: "c1".to_owned(),
            code: 137,
            signal: 9,
            oom_killed: true,
            finished_at_ns: 5,
        };
        write(dir.path(), &exit).unwrap();
        let text = fs::read_to_string(path(dir.path())).unwrap();
        assert_eq!(
            text.trim(),
            r#"{"container":"c1","code":137,"signal":9,"oom_killed":true,"finished_at_ns":5}"#
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
