//! Layers that mean harm.

use proptest::prelude::*;

use super::*;

/// A layer by name; it gets the canary's path.
type Case<'a> = (&'a str, &'a dyn Fn(&str) -> Vec<Raw>);

/// Unpacks each layer in a yard of its own; `make` gets the canary's path.
fn refused(layers: &[Case<'_>]) {
    for (name, make) in layers {
        let yard = Yard::new();
        let result = yard.unpack(&make(&yard.canary()));
        assert!(result.is_err(), "{name} was accepted");
    }
}

fn contained(layers: &[Case<'_>]) {
    for (name, make) in layers {
        let yard = Yard::new();
        if let Err(error) = yard.unpack(&make(&yard.canary())) {
            panic!("{name}: {}", crate::image::text_of(&error));
        }
    }
}

#[test]
fn root_names_that_lead_out_are_refused() {
    refused(&[
        ("dotdot file", &|_| vec![file("../canary/x", "x")]),
        ("dotdot inside", &|_| vec![file("a/../b", "x")]),
        ("dotdot to the root", &|_| vec![link("a/..", "/")]),
        ("dotdot directory", &|_| vec![dir("../canary", 0o777)]),
        ("dotdot hard link", &|_| vec![hard("x", "../canary/file")]),
        ("dotdot whiteout", &|_| vec![file("../canary/.wh.file", "")]),
        ("whiteout of dotdot", &|_| {
            vec![dir("a", 0o755), file("a/.wh...", "")]
        }),
        ("whiteout of dot", &|_| vec![file(".wh..", "")]),
        ("whiteout of nothing", &|_| vec![file("a/.wh.", "")]),
        ("dot as link", &|_| vec![link(".", "/etc")]),
        ("slash as link", &|_| vec![link("/", "/etc")]),
        ("dot as file", &|_| vec![file(".", "")]),
        ("dot as hard link", &|canary| {
            vec![hard(".", format!("{canary}/file"))]
        }),
        ("256 bytes in a name", &|_| vec![file("n".repeat(256), "x")]),
        ("4096 bytes in a path", &|_| {
            vec![file("n/".repeat(2048) + "n", "x")]
        }),
        ("300 levels", &|_| vec![file("n/".repeat(300) + "n", "x")]),
        ("NUL in a PAX path", &|_| {
            vec![Raw {
                pax: vec![("path", b"a\0b".to_vec())],
                ..file("a", "x")
            }]
        }),
        ("hard link to a directory", &|_| {
            vec![dir("d", 0o755), hard("x", "d")]
        }),
        ("hard link to nothing", &|_| vec![hard("x", "y")]),
        ("hard link to the root", &|_| vec![hard("x", "/")]),
        ("hard link through a link out", &|canary| {
            vec![link("l", canary), hard("x", "l/file")]
        }),
        ("file below a file", &|_| {
            vec![file("a", "x"), file("a/b", "y")]
        }),
        ("links in a circle", &|_| {
            vec![link("a", "b"), link("b", "a"), file("a/x", "y")]
        }),
    ]);
}

#[test]
fn root_what_goes_through_links_stays_inside() {
    contained(&[
        ("absolute name", &|canary| {
            vec![file(format!("{canary}/file"), "x")]
        }),
        ("write through an absolute link", &|canary| {
            vec![link("l", canary), file("l/file", "x"), file("l/new", "x")]
        }),
        ("write through a relative link", &|_| {
            vec![link("l", "../../../../canary"), file("l/file", "x")]
        }),
        ("write onto a link", &|canary| {
            vec![link("l", format!("{canary}/file")), file("l", "x")]
        }),
        ("directory onto a link", &|canary| {
            vec![link("l", canary), dir("l", 0o777)]
        }),
        ("directory and chmod onto a link", &|canary| {
            vec![link("l", canary), dir("l/", 0o777), file("l/file", "x")]
        }),
        ("whiteout through a link", &|canary| {
            vec![link("l", canary), file("l/.wh.file", "")]
        }),
        ("opaque through a link", &|canary| {
            vec![link("l", canary), file("l/.wh..wh..opq", "")]
        }),
        ("whiteout of a link", &|canary| {
            vec![link("l", canary), file(".wh.l", "")]
        }),
        ("hard link to a link out", &|canary| {
            vec![
                link("l", format!("{canary}/file")),
                hard("x", "l"),
                file("x", "y"),
            ]
        }),
        ("hard link over the link", &|canary| {
            vec![link("l", canary), file("f", "x"), hard("l", "f")]
        }),
        ("40 links", &|canary| {
            let mut chain: Vec<Raw> = (0..39)
                .map(|n| link(format!("l{n}"), format!("l{}", n + 1)))
                .collect();
            chain.push(link("l39", canary));
            chain.push(file("l0/file", "x"));
            chain
        }),
    ]);
}

#[test]
fn root_odd_entries_are_contained() {
    contained(&[
        ("a directory that becomes a link", &|canary| {
            vec![
                dir("d", 0o755),
                file("d/a", "1"),
                link("d", canary),
                file("d/file", "x"),
            ]
        }),
        ("a link that becomes a directory", &|canary| {
            vec![
                link("d", canary),
                file("d/a", "1"),
                dir("d", 0o777),
                file("d/file", "x"),
            ]
        }),
        ("a link to itself inside", &|_| {
            vec![link("l", "."), file("l/l/l/x", "y")]
        }),
        ("255 bytes in a name", &|_| vec![file("n".repeat(255), "x")]),
        ("no UTF-8 in a name", &|_| {
            vec![file([b'a', 0xff, b'b'], "x")]
        }),
        ("devices and fifo", &|_| {
            vec![
                Raw {
                    device: (8, 0),
                    ..raw(b'4', "sda")
                },
                Raw {
                    device: (1, 3),
                    mode: 0o666,
                    ..raw(b'3', "null")
                },
                raw(b'6', "fifo"),
            ]
        }),
        ("attributes that steer overlayfs", &|_| {
            let pax = vec![
                ("SCHILY.xattr.trusted.overlay.redirect", b"/etc".to_vec()),
                ("SCHILY.xattr.trusted.overlay.opaque", b"y".to_vec()),
                ("SCHILY.xattr.user.overlay.opaque", b"y".to_vec()),
                ("SCHILY.xattr.security.selinux", b"x".to_vec()),
            ];
            vec![Raw {
                pax,
                ..dir("d", 0o755)
            }]
        }),
    ]);
}

#[test]
fn root_limits_hold_for_entries_and_attributes() {
    let yard = Yard::new();
    let many: Vec<Raw> = (0..101).map(|n| file(format!("f{n}"), "")).collect();
    let limits = Limits {
        entries: 100,
        ..Limits::default()
    };
    let result = apply(&tar(&many)[..], &yard.root(), limits, None);
    assert!(matches!(result, Err(UnpackError::TooMany(100))));
    let full = Limits {
        keep_free: u64::MAX,
        ..Limits::default()
    };
    let result = apply(&tar(&[file("f", "x")])[..], &yard.root(), full, None);
    assert!(matches!(result, Err(UnpackError::NoSpace { .. })));
    let long = vec![("SCHILY.xattr.user.a", vec![b'x'; 100_000])];
    let result = yard.unpack(&[Raw {
        pax: long,
        ..file("g", "x")
    }]);
    assert!(matches!(result, Err(UnpackError::UnsafePath { .. })));
}

#[test]
fn root_many_opaque_marks_over_a_large_directory_cost_little() {
    let yard = Yard::new();
    let mut entries: Vec<Raw> = (0..5_000).map(|n| file(format!("d/f{n}"), "")).collect();
    entries.extend((0..5_000).map(|_| file("d/.wh..wh..opq", "")));
    let begin = std::time::Instant::now();
    yard.unpack(&entries).unwrap();
    assert!(begin.elapsed() < std::time::Duration::from_secs(10));
}

fn any_entry() -> impl Strategy<Value = Raw> {
    let name = proptest::collection::vec(
        prop_oneof![
            "[a-c]",
            Just("..".to_owned()),
            Just(".wh.a".to_owned()),
            Just(".".to_owned()),
            Just(".wh..wh..opq".to_owned())
        ],
        1..4,
    );
    let target = prop_oneof![
        Just("CANARY".to_owned()),
        Just("../../canary".to_owned()),
        Just("../canary/file".to_owned()),
        Just("/".to_owned()),
        "[a-c](/[a-c])?",
    ];
    let kind = prop_oneof![Just(b'0'), Just(b'1'), Just(b'2'), Just(b'5'), Just(b'6')];
    (kind, name, target, any::<bool>()).prop_map(|(kind, name, target, absolute)| {
        let path = format!("{}{}", if absolute { "/" } else { "" }, name.join("/"));
        let data = if kind == b'0' {
            b"x".to_vec()
        } else {
            Vec::new()
        };
        let link = if matches!(kind, b'1' | b'2') {
            target.into_bytes()
        } else {
            Vec::new()
        };
        Raw {
            link,
            data,
            mode: 0o777,
            ..raw(kind, path)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn root_no_sequence_of_entries_touches_the_canary(
        mut entries in proptest::collection::vec(any_entry(), 1..12)
    ) {
        let yard = Yard::new();
        for entry in &mut entries {
            if entry.link == b"CANARY" {
                entry.link = yard.canary().into_bytes();
            }
        }
        // One refused entry ends a layer, so each one is also tried on what the others left.
        for entry in &entries {
            let _ = apply(&tar(std::slice::from_ref(entry))[..], &yard.root(), Limits::default(), None);
        }
        let _ = yard.unpack(&entries);
        yard.check();
    }
}
