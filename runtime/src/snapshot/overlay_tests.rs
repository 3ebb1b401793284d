//! What is kept, what is thrown away, and how a container's root is put together.

use std::os::unix::fs::MetadataExt;

use super::*;

fn overlay() -> (tempfile::TempDir, Overlay) {
    let dir = tempfile::Builder::new()
        .prefix("hanok-images-")
        .tempdir()
        .unwrap();
    let overlay = Overlay::open(dir.path(), Limits::default()).unwrap();
    (dir, overlay)
}

fn commit(overlay: &Overlay, name: &str, below: &[ChainId]) -> ChainId {
    let mut builder = ::tar::Builder::new(Vec::new());
    let mut header = ::tar::Header::new_ustar();
    header.set_size(1);
    header.set_mode(0o600);
    builder.append_data(&mut header, name, &b"x"[..]).unwrap();
    let tar = builder.into_inner().unwrap();
    let draft = overlay.unpack(&mut &tar[..], None).unwrap();
    assert_eq!(
        draft.usage(),
        Usage {
            bytes: 1,
            inodes: 1
        }
    );
    let chain = Digest::of(name.as_bytes());
    assert_eq!(overlay.commit(draft, &chain, below).unwrap(), Settled::Done);
    chain
}

#[test]
fn root_a_container_lies_on_its_layers_topmost_first() {
    let (dir, overlay) = overlay();
    let base = commit(&overlay, "base", &[]);
    let top = commit(&overlay, "top", &[base]);
    let fs = |chain: &ChainId| dir.path().join("layers").join(chain.hex()).join("fs");
    std::os::unix::fs::chown(fs(&top), Some(7), Some(8)).unwrap();
    overlay.prepare("c1", &[top, base]).unwrap();
    overlay.prepare("c1", &[top, base]).unwrap();
    let Rootfs::Overlay { lower, upper, work } = overlay.mounts("c1").unwrap() else {
        panic!("not an overlay");
    };
    assert_eq!(
        lower,
        [fs(&top).to_str().unwrap(), fs(&base).to_str().unwrap()]
    );
    let meta = std::fs::metadata(&upper).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (7, 8, 0o755));
    assert_eq!(Path::new(&upper).parent(), Path::new(&work).parent());
    std::fs::write(Path::new(&upper).join("f"), vec![1; 10_000]).unwrap();
    std::os::unix::fs::symlink("/", Path::new(&upper).join("l")).unwrap();
    let usage = overlay.usage(Key::Container("c1")).unwrap();
    assert!(
        usage.inodes == 2 && usage.bytes >= 10_000 && usage.bytes < 100_000,
        "{usage:?}"
    );
    let held = Holdings {
        layers: vec![],
        containers: vec![("c1".to_owned(), vec![top, base])],
    };
    assert_eq!(overlay.list().unwrap().containers, held.containers);
    overlay.remove(Key::Container("c1")).unwrap();
    overlay.remove(Key::Container("c1")).unwrap();
    assert!(matches!(
        overlay.mounts("c1"),
        Err(SnapshotError::NotFound(_))
    ));
}

#[test]
fn ids_that_could_be_paths_are_refused() {
    let (_dir, overlay) = overlay();
    for id in ["", "..", "../../canary", "a/b", "A", &"a".repeat(65), "a\0"] {
        assert!(
            matches!(overlay.prepare(id, &[]), Err(SnapshotError::InvalidId(_))),
            "{id:?}"
        );
        assert!(matches!(
            overlay.remove(Key::Container(id)),
            Err(SnapshotError::InvalidId(_))
        ));
    }
}

#[test]
fn an_image_without_layers_gets_an_empty_one() {
    let (dir, overlay) = overlay();
    overlay.prepare("c1", &[]).unwrap();
    let Rootfs::Overlay { lower, .. } = overlay.mounts("c1").unwrap() else {
        panic!("not an overlay");
    };
    assert_eq!(lower, [dir.path().join("empty").to_str().unwrap()]);
}

#[test]
fn a_missing_layer_is_an_error_and_leaves_no_container() {
    let (_dir, overlay) = overlay();
    let missing = Digest::of(b"missing");
    assert!(matches!(
        overlay.prepare("c1", &[missing]),
        Err(SnapshotError::MissingLayer(_))
    ));
    assert_eq!(overlay.list().unwrap(), Holdings::default());
}

#[test]
fn root_layers_of_an_earlier_boot_that_were_not_synced_are_thrown_away() {
    let (dir, overlay) = overlay();
    let (synced, fresh) = (
        commit(&overlay, "synced", &[]),
        commit(&overlay, "fresh", &[]),
    );
    let mark = |chain: &ChainId| dir.path().join("layers").join(chain.hex()).join("unsynced");
    assert!(overlay.sweep().unwrap().is_empty(), "the same boot");
    std::fs::remove_file(mark(&synced)).unwrap();
    std::fs::write(mark(&fresh), "another-boot").unwrap();
    assert_eq!(overlay.sweep().unwrap().len(), 1);
    assert_eq!(overlay.list().unwrap().layers, [synced]);
    let again = commit(&overlay, "fresh", &[]);
    overlay.sync().unwrap();
    assert!(!mark(&again).exists());
}

#[test]
fn root_a_draft_that_is_dropped_and_half_a_layer_leave_nothing() {
    let (dir, overlay) = overlay();
    let mut builder = ::tar::Builder::new(Vec::new());
    let mut header = ::tar::Header::new_ustar();
    header.set_size(0);
    builder.append_data(&mut header, "a/b", &b""[..]).unwrap();
    let tar = builder.into_inner().unwrap();
    drop(overlay.unpack(&mut &tar[..], None).unwrap());
    assert!(overlay.unpack(&mut &tar[..700], None).is_err());
    assert_eq!(
        std::fs::read_dir(dir.path().join("ingest"))
            .unwrap()
            .count(),
        0
    );
    let half = dir.path().join("layers").join("0".repeat(64));
    std::fs::create_dir_all(half.join("fs")).unwrap();
    assert_eq!(overlay.sweep().unwrap(), [half]);
}
