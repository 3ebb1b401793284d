//! The text of the default profile: what a container may do beside the capabilities, masks and filters that it has
//! anyway. It takes nothing from ordinary programs; it keeps a root in the container from mounting, and from the files
//! of procfs and sysfs that set up the kernel.

use std::fmt::Write as _;

/// A profile of this name, in AppArmor's language. `abi` is the file of features it is written for; `own` is what
/// attr/current says of this process, whose shims end containers by signals.
pub(super) fn default(name: &str, abi: Option<&str>, own: &str) -> String {
    let mut text = String::new();
    if let Some(abi) = abi {
        text += &format!("abi <{abi}>,\n");
    }
    let _ = writeln!(
        text,
        "profile {name} flags=(attach_disconnected,mediate_deleted) {{"
    );
    for rule in ["network", "unix", "capability", "file", "umount"] {
        let _ = writeln!(text, "  {rule},");
    }
    // The last two are what distributions confine other runtimes by, which may share this profile.
    for peer in ["unconfined", "runc", "crun"]
        .into_iter()
        .chain(keeper(own))
    {
        let _ = writeln!(text, "  signal (receive) peer={peer},");
    }
    let _ = writeln!(text, "  signal (send, receive) peer={name},");
    let _ = writeln!(
        text,
        "  ptrace (trace, read, tracedby, readby) peer={name},"
    );
    let _ = writeln!(text, "  deny mount,");
    // Of procfs, processes are written to, and of its settings those of shared memory, which are the pod's.
    let _ = writeln!(text, "  deny /proc/[^1-9s]** w,");
    deny_beside(&mut text, "/proc/s", "ys/", "w");
    deny_beside(&mut text, "/proc/sys/", "kernel/shm", "w");
    for path in ["/proc/sysrq-trigger", "/proc/kcore"] {
        let _ = writeln!(text, "  deny {path} rwklx,");
    }
    // Of sysfs, only cgroups.
    deny_beside(&mut text, "/sys/", "fs/cgroup/", "wklx");
    for path in ["firmware", "devices/virtual/powercap", "kernel/security"] {
        let _ = writeln!(text, "  deny /sys/{path}/** rwklx,");
    }
    text += "}\n";
    text
}

/// The profile of this process, if it has one, and its name needs no quotes.
fn keeper(own: &str) -> Option<&str> {
    let name = own.trim_end_matches(['\n', '\0']);
    let name = name.split_once(" (").map_or(name, |(name, _)| name);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let usable = !name.is_empty() && name.chars().all(plain) && name != "unconfined";
    usable.then_some(name)
}

/// Denies whatever is below `base` and does not begin with `kept`: the language has no exceptions, so it is said
/// letter by letter.
fn deny_beside(text: &mut String, base: &str, kept: &str, access: &str) {
    for (at, letter) in kept.char_indices() {
        let _ = writeln!(text, "  deny {base}{}[^{letter}]** {access},", &kept[..at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_one_path_is_denied_letter_by_letter() {
        let mut text = String::new();
        deny_beside(&mut text, "/a/", "bc/", "w");
        assert_eq!(
            text,
            "  deny /a/[^b]** w,\n  deny /a/b[^c]** w,\n  deny /a/bc[^/]** w,\n"
        );
    }

    #[test]
    fn only_a_plain_name_of_this_process_gets_into_the_profile() {
        assert_eq!(keeper("hanok (enforce)\n"), Some("hanok"));
        assert_eq!(
            keeper("/usr/bin/hanok (complain)\n"),
            Some("/usr/bin/hanok")
        );
        for own in [
            "unconfined\n",
            "",
            "a b (enforce)",
            "x,\n deny (enforce)",
            "system_u:system_r:init_t:s0\0",
        ] {
            assert_eq!(keeper(own), None, "{own:?}");
        }
        let text = default("p", Some("abi/3.0"), "hanok (enforce)\n");
        assert!(text.starts_with("abi <abi/3.0>,\nprofile p flags="));
        assert!(text.contains("  signal (receive) peer=hanok,\n"));
        assert!(default("p", None, "").starts_with("profile p "));
    }
}
