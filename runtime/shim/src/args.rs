//! The command line: `hanok-shim [serve] --state-dir DIR --socket PATH`, `hanok-shim check-user-namespaces
//! --state-dir DIR`, `hanok-shim oci FD DIR`, or `hanok-shim hold`.

use std::ffi::OsString;
use std::path::PathBuf;

use hanok_shim::command_line::{SERVE, STATE_DIR};

/// How to call it.
pub(crate) const USAGE: &str = "usage: hanok-shim --state-dir DIR --socket PATH < SOCKET\n\
    Started by hanok for one pod, with the listening socket as descriptor 0; not meant to be called by hand.";

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Make a daemon and end.
    Launch,
    /// Run as the daemon itself.
    Serve,
    /// Try whether pods can have user namespaces with files in this directory, and end.
    CheckUserNamespaces,
    /// Serve the order of `hanok oci` that comes by this descriptor, with what containers share in this directory, and
    /// end.
    Oci(i32),
    /// Be in a cgroup until the standard input ends.
    Hold,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Args {
    /// What to do.
    pub(crate) verb: Verb,
    /// Directory of the shim's record; exists.
    pub(crate) state_dir: PathBuf,
    /// Where the socket is bound; kept in the command line so that a person finds it.
    pub(crate) socket: PathBuf,
}

impl Args {
    /// Parses what comes after the program's name. The error is a text for a person.
    pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let (mut verb, mut state_dir, mut socket) = (Verb::Launch, None, None);
        let mut words = words.into_iter().peekable();
        if words.next_if(|word| word == "oci").is_some() {
            return oci(words);
        }
        if words.next_if(|word| word == "hold").is_some() {
            return without_paths(Verb::Hold, words);
        }
        while let Some(word) = words.next() {
            let target = match word.to_str() {
                Some(SERVE) => {
                    verb = Verb::Serve;
                    continue;
                }
                Some("check-user-namespaces") => {
                    verb = Verb::CheckUserNamespaces;
                    continue;
                }
                Some(STATE_DIR) => &mut state_dir,
                Some("--socket") => &mut socket,
                _ => return Err(format!("unknown argument {word:?}")),
            };
            let value = words
                .next()
                .ok_or_else(|| format!("{word:?} needs a value"))?;
            *target = Some(PathBuf::from(value));
        }
        let state_dir = state_dir.ok_or("--state-dir is missing")?;
        let socket = match verb {
            Verb::CheckUserNamespaces => PathBuf::new(),
            Verb::Launch | Verb::Serve | Verb::Oci(_) | Verb::Hold => {
                socket.ok_or("--socket is missing")?
            }
        };
        if !state_dir.is_absolute() {
            return Err(format!("--state-dir {state_dir:?} is not absolute"));
        }
        Ok(Self {
            verb,
            state_dir,
            socket,
        })
    }
}

fn oci(mut words: impl Iterator<Item = OsString>) -> Result<Args, String> {
    let fd = words.next().unwrap_or_default();
    let fd = fd.to_str().and_then(|fd| fd.parse::<u16>().ok());
    let fd = fd.filter(|fd| *fd > 2).ok_or("oci needs a descriptor")?;
    let state_dir = words.next().map(PathBuf::from).unwrap_or_default();
    if !state_dir.is_absolute() {
        return Err("oci needs an absolute directory".to_owned());
    }
    Ok(Args {
        state_dir,
        ..without_paths(Verb::Oci(i32::from(fd)), words)?
    })
}

fn without_paths(verb: Verb, mut words: impl Iterator<Item = OsString>) -> Result<Args, String> {
    match words.next() {
        Some(word) => Err(format!("unknown argument {word:?}")),
        None => Ok(Args {
            verb,
            state_dir: PathBuf::new(),
            socket: PathBuf::new(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, String> {
        Args::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn both_paths_are_needed_and_nothing_else_is_taken() {
        let args = parse(&["serve", "--socket", "s", "--state-dir", "/d"]).unwrap();
        let want = Args {
            verb: Verb::Serve,
            state_dir: "/d".into(),
            socket: "s".into(),
        };
        assert_eq!(args, want);
        let oci = parse(&["oci", "7", "/d"]).unwrap();
        assert_eq!((oci.verb, oci.state_dir), (Verb::Oci(7), "/d".into()));
        assert_eq!(parse(&["hold"]).unwrap().verb, Verb::Hold);
        for bad in [
            &[][..],
            &["hold", "x"],
            &["--state-dir", "/d"],
            &["--state-dir"],
            &["--state-dir", "d", "--socket", "s"],
            &["--help"],
            &["oci"],
            &["oci", "2", "/d"],
            &["oci", "-1", "/d"],
            &["oci", "3"],
            &["oci", "3", "d"],
            &["oci", "3", "/d", "4"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
