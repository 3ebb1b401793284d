//! Laws of results.

use proptest::prelude::*;

use super::*;

fn sample() -> AddResult {
    AddResult {
        interfaces: vec![
            Interface {
                name: "br0".into(),
                ..Interface::default()
            },
            Interface {
                name: "eth0".into(),
                mac: "0a:58:0a:01:00:05".into(),
                sandbox: "/run/netns/x".into(),
                mtu: Some(1450),
                ..Interface::default()
            },
        ],
        ips: vec![
            IpConfig {
                address: "10.1.0.5/24".parse().unwrap(),
                gateway: Some("10.1.0.1".parse().unwrap()),
                interface: Some(1),
            },
            IpConfig {
                address: "fd00::5/64".parse().unwrap(),
                gateway: None,
                interface: Some(1),
            },
        ],
        routes: vec![
            Route {
                mtu: Some(1400),
                ..Route::new("0.0.0.0/0".parse().unwrap(), None)
            },
            Route::new("::/0".parse().unwrap(), Some("fd00::1".parse().unwrap())),
        ],
        dns: Dns {
            nameservers: vec!["10.0.0.10".into()],
            ..Dns::default()
        },
    }
}

#[test]
fn the_newest_shape_loses_nothing() {
    let result = sample();
    assert_eq!(
        AddResult::from_json(&result.to_json(Version::V1_1_0)).unwrap(),
        result
    );
}

#[test]
fn every_version_keeps_addresses_and_routes() {
    let result = sample();
    for version in Version::ALL {
        let back = AddResult::from_json(&result.to_json(version)).unwrap();
        let addresses = |r: &AddResult| r.ips.iter().map(|ip| ip.address).collect::<Vec<_>>();
        assert_eq!(addresses(&back), addresses(&result), "{version}");
        assert_eq!(back.routes.len(), 2, "{version}");
        assert_eq!(back.dns, result.dns, "{version}");
    }
}

#[test]
fn older_shapes_say_only_what_they_know() {
    let result = sample();
    let text = result.to_json(Version::V0_4_0).to_string();
    assert!(
        text.contains(r#""version":"4""#) && !text.contains("mtu"),
        "{text}"
    );
    let text = result.to_json(Version::V1_0_0).to_string();
    assert!(
        !text.contains(r#""version""#) && !text.contains("mtu"),
        "{text}"
    );
    let text = result.to_json(Version::V0_2_0).to_string();
    assert!(
        text.contains(r#""ip4""#) && !text.contains("interfaces"),
        "{text}"
    );
}

#[test]
fn pod_addresses_are_those_inside_a_sandbox() {
    let mut result = sample();
    result.ips[1].interface = Some(0);
    assert_eq!(
        result.pod_ips(),
        vec!["10.1.0.5".parse::<IpAddr>().unwrap()]
    );
}

#[test]
fn wrong_results_name_field_and_value() {
    let table = [
        (r#"{"ips":[{"address":"10.1.0.5"}]}"#, "ips[0].address"),
        (
            r#"{"ips":[{"address":"10.1.0.5/24","interface":3}]}"#,
            "ips[0].interface",
        ),
        (r#"{"routes":[{"dst":"x"}]}"#, r#"routes[0].dst" is "x""#),
        (r#"{"ips":7}"#, r#"ips" is 7"#),
        (r#"{"dns":{"search":[1]}}"#, "dns.search[0]"),
    ];
    for (text, part) in table {
        let error = AddResult::parse(text.as_bytes())
            .expect_err(text)
            .to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn null_lists_are_empty() {
    let result = AddResult::parse(br#"{"cniVersion":"1.0.0","ips":null,"dns":null}"#).unwrap();
    assert_eq!(result, AddResult::default());
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = AddResult::parse(&bytes);
        let _ = super::super::ErrorObject::parse(&bytes);
    }

    #[test]
    fn no_field_values_make_the_parser_panic(a in "[0-9a-f:./]{0,20}", n in any::<i64>()) {
        let value = json!({
            "ips": [{"address": a, "gateway": a, "interface": n}],
            "routes": [{"dst": a, "mtu": n}],
            "interfaces": [{"name": a, "mtu": n}],
            "ip4": {"ip": a},
        });
        let _ = AddResult::from_json(&value);
    }
}
