//! Laws of leases.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn host_local(ipam: Value) -> Result<HostLocal, IpamError> {
    let Value::Object(plugin) = json!({"ipam": ipam}) else {
        unreachable!("it is an object")
    };
    HostLocal::parse(&plugin)
}

fn first(result: &AddResult) -> String {
    result.ips[0].address.addr().to_string()
}

#[test]
fn addresses_rotate_and_skip_gateway_network_and_broadcast() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = host_local(json!({"subnet": "10.9.0.0/29"})).unwrap();
    let mut given = Vec::new();
    for n in 0..5 {
        let result = ipam.allocate(dir.path(), &format!("c{n}"), "eth0").unwrap();
        assert_eq!(result.ips[0].gateway.unwrap().to_string(), "10.9.0.1");
        assert_eq!(result.ips[0].address.prefix_len(), 29);
        given.push(first(&result));
    }
    assert_eq!(
        given,
        ["10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.5", "10.9.0.6"]
    );
    let error = ipam.allocate(dir.path(), "c5", "eth0").unwrap_err();
    assert!(matches!(error, IpamError::Exhausted { .. }), "{error}");
    release(dir.path(), "c1", "eth0").unwrap();
    release(dir.path(), "c3", "eth0").unwrap();
    assert_eq!(
        first(&ipam.allocate(dir.path(), "c6", "eth0").unwrap()),
        "10.9.0.3"
    );
    assert_eq!(
        first(&ipam.allocate(dir.path(), "c7", "eth0").unwrap()),
        "10.9.0.5"
    );
}

#[test]
fn a_freed_address_is_the_last_to_be_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = host_local(json!({"subnet": "10.9.0.0/24"})).unwrap();
    assert_eq!(
        first(&ipam.allocate(dir.path(), "a", "eth0").unwrap()),
        "10.9.0.2"
    );
    release(dir.path(), "a", "eth0").unwrap();
    assert_eq!(
        first(&ipam.allocate(dir.path(), "b", "eth0").unwrap()),
        "10.9.0.3"
    );
}

#[test]
fn one_exhausted_family_gives_the_other_back() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = host_local(json!({"ranges": [
        [{"subnet": "10.9.0.0/24"}],
        [{"subnet": "fd00::/64", "rangeStart": "fd00::5", "rangeEnd": "fd00::5"}],
    ]}))
    .unwrap();
    assert_eq!(ipam.allocate(dir.path(), "a", "eth0").unwrap().ips.len(), 2);
    assert!(ipam.allocate(dir.path(), "b", "eth0").is_err());
    let leases = list(dir.path()).unwrap().leases;
    assert_eq!(leases.iter().filter(|l| l.container == "b").count(), 0);
}

#[test]
fn ranges_of_a_set_follow_each_other_and_start_anew() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = host_local(json!({"ranges": [[
        {"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.10", "rangeEnd": "10.9.0.11"},
        {"subnet": "10.9.1.0/24", "rangeStart": "10.9.1.20", "rangeEnd": "10.9.1.20"},
    ]]}))
    .unwrap();
    let mut given = Vec::new();
    for n in 0..4 {
        given.push(first(&ipam.allocate(dir.path(), "a", "eth0").unwrap()));
        if n > 0 {
            unlink(&dir.path().join(&given[n - 1])).unwrap();
        }
    }
    assert_eq!(given, ["10.9.0.10", "10.9.0.11", "10.9.1.20", "10.9.0.10"]);
}

#[test]
fn leases_are_freed_by_container_and_interface() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = host_local(json!({"subnet": "10.9.0.0/24"})).unwrap();
    ipam.allocate(dir.path(), "a", "eth0").unwrap();
    ipam.allocate(dir.path(), "a", "eth1").unwrap();
    fs::write(dir.path().join("10.9.0.9"), "a").unwrap();
    let freed = release(dir.path(), "a", "eth0").unwrap();
    let texts: Vec<_> = freed.iter().map(IpAddr::to_string).collect();
    assert_eq!(
        texts,
        ["10.9.0.2", "10.9.0.9"],
        "a lease without interface is the container's"
    );
    assert_eq!(
        release(dir.path(), "a", "eth0").unwrap(),
        Vec::<IpAddr>::new()
    );
    assert_eq!(
        release(&dir.path().join("missing"), "a", "eth0").unwrap(),
        Vec::<IpAddr>::new()
    );
}

#[test]
fn a_draft_of_a_crash_is_no_lease() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".tmp-a-eth0"), "a\r\neth0").unwrap();
    assert_eq!(list(dir.path()).unwrap(), Leases::default());
    collect(dir.path(), &HashSet::new()).unwrap();
    assert!(!dir.path().join(".tmp-a-eth0").exists());
}

#[test]
fn concurrent_allocations_never_share_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = host_local(json!({"subnet": "10.9.0.0/24"})).unwrap();
    let mut given = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|n| {
                let (ipam, dir) = (&ipam, dir.path());
                scope.spawn(move || first(&ipam.allocate(dir, &format!("c{n}"), "eth0").unwrap()))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .collect::<Vec<_>>()
    });
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 64);
}

#[test]
fn wrong_ranges_name_field_and_value() {
    let table = [
        (json!({}), "ipam.ranges"),
        (json!({"ranges": [[]]}), "ipam.ranges"),
        (json!({"subnet": "10.0.0.0/31"}), "ipam.subnet"),
        (json!({"subnet": "x"}), r#"ipam.subnet" is "x""#),
        (
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.1.0.1"}),
            "ipam.rangeStart",
        ),
        (
            json!({"subnet": "10.0.0.0/24", "gateway": "fd00::1"}),
            "ipam.gateway",
        ),
        (
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}),
            "starts before it ends",
        ),
        (
            json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}),
            "same family",
        ),
    ];
    for (ipam, part) in table {
        let error = host_local(ipam.clone()).expect_err(&ipam.to_string());
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(part), "{ipam}: {cause}");
    }
}

proptest! {
    #[test]
    fn no_range_makes_the_order_panic_or_repeat(
        subnet in "(10\\.0\\.0\\.0/(2[6-9]|30)|fd00::/12[0-6]|255\\.255\\.255\\.248/29|0\\.0\\.0\\.0/29)",
        last in "(10\\.0\\.0\\.[0-9]{1,2}|fd00::[0-9a-f]{1,2}|255\\.255\\.255\\.2[0-5]{2}|0\\.0\\.0\\.0)",
    ) {
        let ipam = host_local(json!({"subnet": subnet})).unwrap();
        let all: Vec<_> = ipam.sets[0].after(last.parse().ok()).map(|ip| ip.address.addr()).collect();
        let unique: HashSet<_> = all.iter().copied().collect();
        prop_assert_eq!(unique.len(), all.len());
        let fresh = ipam.sets[0].after(None).count();
        prop_assert_eq!(all.len(), fresh);
    }

    #[test]
    fn no_content_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("10.0.0.1"), bytes).unwrap();
        let _ = list(dir.path()).unwrap();
    }

    #[test]
    fn no_configuration_makes_the_parser_panic(a in "[0-9a-f:./]{0,20}", b in "[0-9a-f:./]{0,20}") {
        let _ = host_local(json!({"subnet": a, "rangeStart": b, "rangeEnd": b, "gateway": a}));
        let _ = host_local(json!({"ranges": [[{"subnet": "10.0.0.0/24", "rangeStart": b}]]}));
    }
}
