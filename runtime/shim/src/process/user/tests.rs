//! Laws of how a user is found in the container's files.

use super::*;
use proptest::prelude::*;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
        +::::::\nbroken\napp:x:1000:1001:App:/home/app:/bin/sh\n\
        1234:x:0:0::/:\n-1:x:0:0::/:\nbig:x:4294967296:0::/:\nhigh:x:2147483648:0::/:\n\
        evil:x:7:7::/a\u{1}b:\n0x0:x:77:77::/:\n";
const GROUP: &str = "root:x:0:\nstaff:x:50:app,root\nwheel:x:10:other,app\nbad:x:-3:app\n";

fn user(spec: &str) -> User {
    User {
        spec: spec.to_owned(),
        gid: None,
        additional_gids: vec![],
        strict_groups: false,
    }
}

fn resolved(user: &User) -> Result<ResolvedUser> {
    resolve_in(user, PASSWD, || Ok(GROUP.to_owned()))
}

#[test]
fn a_user_is_exactly_what_the_files_and_the_digits_say() {
    for (spec, uid, gid, groups) in [
        ("", 0, 0, &[0, 50][..]),
        ("0", 0, 0, &[0, 50]),
        ("00", 0, 0, &[0, 50]),
        ("root", 0, 0, &[0, 50]),
        ("app", 1000, 1001, &[1001, 50, 10]),
        ("1000", 1000, 1001, &[1001, 50, 10]),
        ("app:", 1000, 1001, &[1001, 50, 10]),
        ("app:staff", 1000, 50, &[50, 10]),
        ("app:7", 1000, 7, &[7, 50, 10]),
        ("4711", 4711, 0, &[0]),
        ("1234", 1234, 0, &[0]),
        ("0x0", 77, 77, &[77]),
        (
            "2147483647:2147483647",
            2_147_483_647,
            2_147_483_647,
            &[2_147_483_647],
        ),
    ] {
        let got = resolved(&user(spec)).unwrap();
        assert_eq!(
            (got.uid, got.gid, &got.groups[..]),
            (uid, gid, groups),
            "{spec:?}"
        );
    }
}

#[test]
fn what_is_no_user_is_an_error_and_never_root() {
    for spec in [
        "4294967296",
        "-1",
        "99999999999999999999",
        "2147483648",
        "1000:99999999999",
        "+0",
        " 0",
        "0 ",
        "nobody",
        "big",
        "high",
        "app:nogroup",
        "app:-1",
        "+",
        "app:bad",
        "a/b",
        "a:b:c",
        "broken",
    ] {
        let failure = resolved(&user(spec)).unwrap_err();
        assert_eq!(
            failure.kind,
            hanok_shim::protocol::FailureKind::Invalid,
            "{spec:?}"
        );
    }
}

#[test]
fn groups_are_merged_or_strict() {
    let mut wanted = user("app");
    wanted.additional_gids = vec![5, 50];
    assert_eq!(resolved(&wanted).unwrap().groups, [1001, 50, 10, 5]);
    wanted.strict_groups = true;
    assert_eq!(resolved(&wanted).unwrap().groups, [1001, 5, 50]);
    wanted.gid = Some(9);
    assert_eq!(resolved(&wanted).unwrap().groups, [9, 5, 50]);
    wanted.gid = Some(u32::MAX);
    assert!(resolved(&wanted).is_err());
}

#[test]
fn a_user_of_numbers_is_known_without_any_file() {
    let wanted = User {
        spec: "1000".to_owned(),
        gid: Some(7),
        additional_gids: vec![7, 50],
        strict_groups: true,
    };
    let process = |user: &User, home: &str| Process {
        user: user.clone(),
        env: vec![format!("HOME={home}")],
        ..Process::default()
    };
    let found = known(&process(&wanted, "/here")).unwrap();
    assert_eq!(
        found,
        ResolvedUser {
            home: "/here".into(),
            ..resolved(&wanted).unwrap()
        }
    );
    // What only the files tell, or would refuse, is left to them.
    assert_eq!(known(&process(&wanted, "")), None);
    for user in [
        User {
            spec: "app".into(),
            ..wanted.clone()
        },
        User {
            spec: "4294967296".into(),
            ..wanted.clone()
        },
        User {
            gid: None,
            ..wanted.clone()
        },
        User {
            gid: Some(u32::MAX),
            ..wanted.clone()
        },
        User {
            strict_groups: false,
            ..wanted.clone()
        },
    ] {
        assert_eq!(known(&process(&user, "/here")), None, "{user:?}");
    }
}

#[test]
fn a_home_with_control_characters_is_not_used() {
    assert_eq!(resolved(&user("evil")).unwrap().home, "/");
    assert_eq!(resolved(&user("app")).unwrap().home, "/home/app");
}

proptest! {
    #[test]
    fn any_bytes_give_a_user_or_an_error(spec in ".*", passwd in ".*", group in ".*") {
        let user = user(&spec);
        if let Ok(found) = resolve_in(&user, &passwd, || Ok(group.clone())) {
            prop_assert!(found.uid <= MAX_ID && found.gid <= MAX_ID);
            prop_assert_eq!(found.groups[0], found.gid);
        }
    }
}
