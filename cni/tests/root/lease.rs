//! Laws of leases and of garbage collection, on real attachments.

use hanok_cni::{Options, Runner, Source, netns};

use crate::rig::{built_in, files, in_scratch_namespace};

#[test]
fn root_an_exhausted_range_is_a_clear_error_and_heals() {
    in_scratch_namespace(|rig| async move {
        // Two addresses for pods: a /29 would have five, a /30 has one beside the gateway.
        let source = Source::Fixed(built_in(&["10.123.0.0/30"]));
        let runner = Runner::new(Options {
            source,
            ..rig.options.clone()
        });
        let first = rig.pod(&runner, "a").await;
        let second = rig.container("b").await;
        let error = runner.add(&second).await.unwrap_err().chain();
        assert!(
            error.contains("no IP addresses available in range set 10.123.0.1-10.123.0.2"),
            "{error}"
        );
        rig.remove(&runner, &first).await;
        runner.add(&second).await.unwrap();
        runner.del(&second).await.unwrap();
        netns::remove(&second.netns).await.unwrap();
    });
}

#[test]
fn root_restarts_do_not_leak_addresses() {
    in_scratch_namespace(|rig| async move {
        let source = Source::Fixed(built_in(&["10.123.0.0/29"]));
        let options = Options {
            source,
            ..rig.options.clone()
        };
        for round in 0..5 {
            let runner = Runner::new(options.clone());
            let mut ids = Vec::new();
            for n in 0..4 {
                let pod = rig.pod(&runner, &format!("r{round}p{n}")).await;
                ids.push(pod.attachment.id.clone());
                // The machine goes down: namespaces vanish, nobody calls DEL.
                netns::remove(&pod.attachment.netns).await.unwrap();
            }
            let collected = Runner::new(options.clone()).garbage_collect(&[]).await;
            assert!(collected.errors.is_empty(), "{:?}", collected.errors);
            assert_eq!(collected.containers.len(), ids.len());
        }
    });
}

#[test]
fn root_collection_spares_the_living_and_frees_leases_of_nobody() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let (a, b) = (rig.pod(&runner, "a").await, rig.pod(&runner, "b").await);
        let dir = rig.options.ipam_dir.join("test");
        std::fs::write(dir.join("10.123.0.77"), "nobody\r\neth0").unwrap();
        std::fs::write(dir.join(".tmp-x-eth0"), "x").unwrap();
        let collected = runner.garbage_collect(&["a".to_owned()]).await;
        assert!(collected.errors.is_empty(), "{:?}", collected.errors);
        assert_eq!(collected.containers, ["b"]);
        assert_eq!(
            collected.addresses,
            ["10.123.0.77".parse::<std::net::IpAddr>().unwrap()]
        );
        runner.check(&a.attachment).await.unwrap();
        let leases = runner.leases("test").unwrap().leases;
        assert_eq!(leases.len(), 1);
        assert_eq!(leases[0].container, "a");
        assert_eq!(files(&dir), ["10.123.0.2", "last_reserved_ip.0", "lock"]);
        netns::remove(&b.attachment.netns).await.unwrap();
        rig.remove(&runner, &a).await;
    });
}

#[test]
fn root_foreign_files_among_leases_are_reported_and_kept() {
    in_scratch_namespace(|rig| async move {
        let runner = rig.runner();
        let dir = rig.options.ipam_dir.join("test");
        std::fs::create_dir_all(dir.join("a-directory")).unwrap();
        std::fs::write(dir.join("notes.txt"), "hello").unwrap();
        std::fs::write(dir.join("10.123.0.2"), "").unwrap();
        std::fs::write(dir.join("10.123.0.3"), [0xff, 0xfe, 0x00]).unwrap();
        let pod = rig.pod(&runner, "a").await;
        assert_eq!(
            pod.ip().to_string(),
            "10.123.0.4",
            "an address that somebody has is not given"
        );
        let found = runner.leases("test").unwrap();
        assert_eq!(found.leases.len(), 1);
        let names: Vec<_> = found
            .foreign
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy())
            .collect();
        assert_eq!(
            names,
            ["10.123.0.2", "10.123.0.3", "a-directory", "notes.txt"]
        );
        runner.garbage_collect(&["a".to_owned()]).await;
        assert!(dir.join("10.123.0.2").exists() && dir.join("notes.txt").exists());
        rig.remove(&runner, &pod).await;
    });
}
