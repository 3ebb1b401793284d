//! Names of signals.

/// Names and numbers, without SIG.
const NAMES: [(&str, i32); 34] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("IOT", libc::SIGIOT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("POLL", libc::SIGPOLL),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

/// First and last real-time signal.
const REAL_TIME: (i32, i32) = (34, 64);

/// A signal by number or name, with or without SIG, in any case; also `RTMIN+3` and `RTMAX-1`.
pub(super) fn parse(text: &str) -> Option<i32> {
    let in_range = |number: &i32| (1..=REAL_TIME.1).contains(number);
    if let Ok(number) = text.parse::<i32>() {
        return Some(number).filter(in_range);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Some(*number);
    }
    let (base, offset) = match name.get(..5)? {
        "RTMIN" => (REAL_TIME.0, name.get(5..)?),
        "RTMAX" => (REAL_TIME.1, name.get(5..)?),
        _ => return None,
    };
    let offset = if offset.is_empty() {
        0
    } else {
        offset.parse().ok()?
    };
    let real_time = |number: &i32| (REAL_TIME.0..=REAL_TIME.1).contains(number);
    i32::checked_add(base, offset).filter(real_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_names_or_numbers() {
        for (text, want) in [
            ("9", Some(9)),
            ("KILL", Some(9)),
            ("SIGKILL", Some(9)),
            ("sigterm", Some(15)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMAX-1", Some(63)),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("", None),
            ("SIG", None),
            ("RTMAX+1", None),
            ("FLY", None),
        ] {
            assert_eq!(parse(text), want, "{text:?}");
        }
    }
}
