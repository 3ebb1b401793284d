//! Layers that mean well: what comes out, alone and on top of others.

use std::os::unix::fs::FileTypeExt;

use super::*;

fn layer(entries: &[Raw], below: &[&Yard]) -> Yard {
    let yard = Yard::new();
    let roots: Vec<PathBuf> = below.iter().map(|yard| yard.root()).collect();
    let bytes = tar(entries);
    let unpacked = apply(&bytes[..], &yard.root(), Limits::default(), None).unwrap();
    if settle(&unpacked, &roots).unwrap() == Settled::Done {
        return yard;
    }
    let yard = Yard::new();
    let unpacked = apply(&bytes[..], &yard.root(), Limits::default(), Some(&roots)).unwrap();
    assert_eq!(settle(&unpacked, &roots).unwrap(), Settled::Done);
    yard
}

fn is_whiteout(path: &Path) -> bool {
    let meta = fs::symlink_metadata(path).unwrap();
    meta.file_type().is_char_device() && meta.rdev() == 0
}

fn is_opaque(path: &Path) -> bool {
    let mut value = [0_u8; 8];
    let length = rustix::fs::getxattr(path, "trusted.overlay.opaque", &mut value[..]);
    length.is_ok_and(|length| &value[..length] == b"y")
}

#[test]
fn root_metadata_survives_in_the_right_order() {
    let capability = {
        let mut value = vec![0_u8; 20];
        value[3] = 2; // revision 2
        value[4..8].copy_from_slice(&(1_u32 << 10).to_le_bytes());
        value
    };
    let pax = vec![
        ("SCHILY.xattr.security.capability", capability.clone()),
        ("SCHILY.xattr.user.note", b"hello".to_vec()),
        ("mtime", b"1600000000.25".to_vec()),
    ];
    let yard = layer(
        &[
            dir("d", 0o1777),
            Raw {
                mode: 0o4755,
                ..file("d/setuid", "x")
            },
            Raw {
                pax,
                ..file("d/capable", "y")
            },
            Raw {
                device: (1, 3),
                mode: 0o666,
                ..raw(b'3', "null")
            },
            link("l", "d/setuid"),
            hard("h", "d/setuid"),
        ],
        &[],
    );
    let meta = |path: &str| fs::symlink_metadata(yard.root().join(path)).unwrap();
    assert_eq!(meta("d").mode() & 0o7777, 0o1777);
    assert_eq!(
        meta("d").mtime(),
        1_700_000_000,
        "directories' times come last"
    );
    assert_eq!(meta("d/setuid").mode() & 0o7777, 0o4755);
    assert_eq!(
        (meta("d/setuid").uid(), meta("d/setuid").gid()),
        (1000, 1001)
    );
    assert_eq!((meta("l").uid(), meta("l").mtime()), (1000, 1_700_000_000));
    assert_eq!(meta("h").ino(), meta("d/setuid").ino());
    assert_eq!(
        (meta("null").mode() & 0o7777, meta("null").rdev()),
        (0o666, rustix::fs::makedev(1, 3))
    );
    let capable = yard.root().join("d/capable");
    assert_eq!(
        (meta("d/capable").mtime(), meta("d/capable").mtime_nsec()),
        (1_600_000_000, 250_000_000)
    );
    let attribute = |name: &str| {
        let mut value = vec![0_u8; 64];
        let length = rustix::fs::getxattr(&capable, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    assert_eq!(attribute("security.capability"), capability);
    assert_eq!(attribute("user.note"), b"hello");
}

#[test]
fn root_the_last_of_one_name_wins_and_parents_need_no_entry() {
    let yard = layer(
        &[
            file("a/b/c/deep", "1"),
            file("x", "first"),
            file("x", "last"),
            dir("d", 0o755),
            file("d/gone", ""),
            file("d", "now a file"),
            link("n", "real"),
            file("n/through", "link"),
            file("p".repeat(200) + "/" + &"q".repeat(200), "long"),
        ],
        &[],
    );
    let read = |path: &str| fs::read_to_string(yard.root().join(path)).unwrap();
    assert_eq!(read("x"), "last");
    assert_eq!(read("d"), "now a file");
    assert_eq!(read("real/through"), "link");
    assert_eq!(
        fs::metadata(yard.root().join("a/b")).unwrap().mode() & 0o7777,
        0o755
    );
    assert_eq!(read(&("p".repeat(200) + "/" + &"q".repeat(200))), "long");
}

#[test]
fn root_whiteouts_speak_of_the_layers_below_wherever_they_stand() {
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
        let entries = [
            file("x/.wh..wh..opq", ""),
            file("x/new", "n"),
            file(".wh.a", ""),
            file("a/inner", "i"),
            file(".wh.gone", ""),
        ];
        let entries: Vec<Raw> = order.iter().map(|at| entries[*at].clone()).collect();
        let yard = layer(&entries, &[]);
        let root = yard.root();
        assert!(is_opaque(&root.join("x")) && root.join("x/new").is_file());
        assert!(is_opaque(&root.join("a")) && root.join("a/inner").is_file());
        assert!(is_whiteout(&root.join("gone")));
    }
    let yard = layer(
        &[file(".wh..wh.plnk/1.2", ""), file(".wh..wh.aufs", "")],
        &[],
    );
    assert_eq!(fs::read_dir(yard.root()).unwrap().count(), 0);
}

#[test]
fn root_a_parent_without_an_entry_looks_as_it_does_below() {
    let base = layer(
        &[
            dir("./", 0o711),
            dir("tmp", 0o1777),
            dir("tmp/in", 0o700),
            dir("other", 0o700),
        ],
        &[],
    );
    let middle = layer(&[file(".wh.other", ""), file("tmp/a", "")], &[&base]);
    let top = layer(
        &[file("tmp/in/x", ""), file("other/x", "")],
        &[&middle, &base],
    );
    let mode = |path: &str| fs::metadata(top.root().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode(""), 0o711);
    assert_eq!(mode("tmp"), 0o1777);
    assert_eq!(mode("tmp/in"), 0o700);
    assert_eq!(mode("other"), 0o755, "removed in between");
    assert_eq!(fs::metadata(top.root().join("tmp")).unwrap().uid(), 1000);
    assert_eq!(
        fs::metadata(top.root().join("tmp")).unwrap().mtime(),
        1_700_000_000
    );
}

#[test]
fn root_a_parent_that_is_a_link_below_is_followed() {
    let base = layer(
        &[
            dir("usr", 0o755),
            dir("usr/bin", 0o711),
            link("bin", "usr/bin"),
        ],
        &[],
    );
    let top = layer(&[file("bin/tool", "t"), file("/bin/sub/x", "s")], &[&base]);
    assert!(!top.root().join("bin").exists());
    assert_eq!(
        fs::read_to_string(top.root().join("usr/bin/tool")).unwrap(),
        "t"
    );
    assert!(top.root().join("usr/bin/sub/x").is_file());
    assert_eq!(
        fs::metadata(top.root().join("usr/bin")).unwrap().mode() & 0o7777,
        0o711
    );
    let out = Yard::new();
    let base = layer(&[link("l", out.canary())], &[]);
    let top = layer(&[file("l/file", "x")], &[&base]);
    out.check();
    assert!(top.root().join(&out.canary()[1..]).join("file").is_file());
}

/// What overlayfs makes of the layers, topmost first.
fn merged(layers: &[&Yard], look: impl Fn(&Path)) {
    let mount = tempfile::Builder::new()
        .prefix("hanok-images-mnt-")
        .tempdir()
        .unwrap();
    let paths: Vec<String> = layers
        .iter()
        .map(|yard| yard.root().to_str().unwrap().to_owned())
        .collect();
    let options = std::ffi::CString::new(format!("lowerdir={}", paths.join(":"))).unwrap();
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount(
        "overlay",
        mount.path(),
        "overlay",
        flags,
        Some(options.as_c_str()),
    )
    .unwrap();
    let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(mount.path())));
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    seen.unwrap();
}

#[test]
fn root_overlayfs_reads_whiteouts_and_opaque_marks_as_they_are_meant() {
    let base = layer(
        &[
            file("keep", "k"),
            file("gone", "g"),
            file("x/old", "o"),
            file("a/old", "o"),
            file("f/old", "o"),
            link("link", "keep"),
        ],
        &[],
    );
    let top = layer(
        &[
            file("x/new", "n"),
            file("x/.wh..wh..opq", ""),
            file(".wh.gone", ""),
            file(".wh.a", ""),
            file("a/new", "n"),
            file("f", "file now"),
            dir("f", 0o755),
            dir("link", 0o755),
        ],
        &[&base],
    );
    merged(&[&top, &base], |root| {
        let names = |path: &str| {
            let mut names: Vec<String> = fs::read_dir(root.join(path))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(""), ["a", "f", "keep", "link", "x"]);
        assert_eq!(
            (names("x"), names("a")),
            (vec!["new".to_owned()], vec!["new".to_owned()])
        );
        assert!(names("f").is_empty() && names("link").is_empty());
        assert_eq!(fs::read_to_string(root.join("keep")).unwrap(), "k");
    });
}
