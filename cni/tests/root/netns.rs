//! Laws of pinned namespaces.

use hanok_cni::netns;

use crate::rig::{files, in_scratch_namespace, sh};

#[test]
fn root_a_pinned_namespace_has_loopback_and_goes_at_once() {
    in_scratch_namespace(|rig| async move {
        let path = netns::new_path(&rig.pins()).unwrap();
        netns::create(&path).await.unwrap();
        assert_eq!(netns::list(&rig.pins()).unwrap(), vec![path.clone()]);
        let link = netns::run_in(&path, || sh("ip link show lo"))
            .await
            .unwrap();
        assert!(link.contains("LOOPBACK,UP"), "{link}");
        let taken = netns::create(&path).await.unwrap_err();
        assert!(taken.to_string().contains("cannot create"), "{taken}");
        netns::remove(&path).await.unwrap();
        netns::remove(&path).await.unwrap();
        assert_eq!(files(&rig.pins()), Vec::<String>::new());
    });
}

#[test]
fn root_a_file_that_a_reboot_left_is_no_namespace_and_can_be_removed() {
    in_scratch_namespace(|rig| async move {
        let path = netns::new_path(&rig.pins()).unwrap();
        std::fs::create_dir_all(rig.pins()).unwrap();
        std::fs::write(&path, "").unwrap();
        let error = netns::run_in(&path, || ()).await.unwrap_err();
        assert!(error.to_string().contains("cannot open"), "{error}");
        netns::remove(&path).await.unwrap();
    });
}

#[test]
fn root_threads_of_the_runtime_stay_in_their_namespace() {
    in_scratch_namespace(|rig| async move {
        let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let before = own();
        let runner = rig.runner();
        let mut pods = Vec::new();
        for n in 0..8 {
            pods.push(rig.pod(&runner, &format!("p{n}")).await);
        }
        for _ in 0..32 {
            assert_eq!(tokio::task::spawn_blocking(own).await.unwrap(), before);
            assert_eq!(tokio::spawn(async move { own() }).await.unwrap(), before);
        }
        for pod in &pods {
            rig.remove(&runner, pod).await;
        }
    });
}
