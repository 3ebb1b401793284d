//! What the tar reader reads and what it refuses.

use proptest::prelude::*;

use super::*;

fn list(bytes: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, TarError> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let mut data = Vec::new();
        loop {
            let piece = reader.data()?;
            if piece.is_empty() {
                break;
            }
            data.extend_from_slice(piece);
            let n = piece.len();
            reader.consume(n);
        }
        entries.push((entry, data));
    }
    reader.drain()?;
    Ok(entries)
}

fn archive(build: impl FnOnce(&mut ::tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    build(&mut builder);
    builder.into_inner().unwrap()
}

fn file(builder: &mut ::tar::Builder<Vec<u8>>, path: &str, data: &[u8]) {
    let mut header = ::tar::Header::new_ustar();
    header.set_size(data.len() as u64);
    header.set_mode(0o4755);
    header.set_uid(1000);
    header.set_gid(1001);
    header.set_mtime(1_700_000_000);
    builder.append_data(&mut header, path, data).unwrap();
}

fn one_file() -> Vec<u8> {
    archive(|builder| file(builder, "dir/name", b"content"))
}

/// Rewrites a header in place and makes its checksum right again.
fn patch(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    let block = at / BLOCK * BLOCK;
    bytes[block + 148..block + 156].fill(b' ');
    let sum: u64 = bytes[block..block + BLOCK]
        .iter()
        .map(|b| u64::from(*b))
        .sum();
    bytes[block + 148..block + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes
}

#[test]
fn a_file_comes_with_all_its_metadata() {
    let entries = list(&one_file()).unwrap();
    let (entry, data) = &entries[0];
    assert_eq!(entry.path, b"dir/name");
    assert_eq!(entry.kind, Kind::File);
    assert_eq!((entry.mode, entry.uid, entry.gid), (0o4755, 1000, 1001));
    assert_eq!(entry.mtime, 1_700_000_000);
    assert_eq!(data, b"content");
}

#[test]
fn long_names_of_gnu_and_pax_are_whole() {
    let long = format!(
        "{}/file",
        "d".repeat(100).as_str().to_owned() + &"/e".repeat(200)
    );
    let gnu = archive(|builder| {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(0);
        builder.append_data(&mut header, &long, &b""[..]).unwrap();
    });
    assert_eq!(list(&gnu).unwrap()[0].0.path, long.as_bytes());
    let pax = archive(|builder| {
        builder
            .append_pax_extensions([
                ("path", long.as_bytes()),
                ("mtime", &b"-1.5"[..]),
                ("SCHILY.xattr.user.a", &b"1\n2\0"[..]),
            ])
            .unwrap();
        file(builder, "short", b"x");
    });
    let (entry, _) = &list(&pax).unwrap()[0];
    assert_eq!(entry.path, long.as_bytes());
    assert_eq!((entry.mtime, entry.mtime_nanos), (-2, 500_000_000));
    assert_eq!(entry.xattrs, [(b"user.a".to_vec(), b"1\n2\0".to_vec())]);
}

#[test]
fn what_two_readers_could_read_differently_is_refused() {
    let pax_size = |size: &'static str| {
        archive(|builder| {
            builder
                .append_pax_extensions([("size", size.as_bytes())])
                .unwrap();
            file(builder, "a", b"12345");
        })
    };
    assert!(list(&pax_size("5")).is_ok());
    assert!(list(&pax_size("0")).is_err());
    assert!(list(&pax_size("512")).is_err());
    assert!(list(&pax_size("-1")).is_err());
    assert!(
        list(&patch(one_file(), 156, b"2")).is_err(),
        "symlink with data"
    );
    assert!(list(&patch(one_file(), 156, b"S")).is_err(), "sparse");
    assert!(list(&patch(one_file(), 156, b"Z")).is_err(), "unknown");
    assert!(
        list(&patch(one_file(), 124, &[0xff; 12])).is_err(),
        "negative size"
    );
    let mut bad_sum = one_file();
    bad_sum[0] ^= 1;
    assert!(list(&bad_sum).is_err());
    let sparse = archive(|builder| {
        builder
            .append_pax_extensions([("GNU.sparse.major", &b"1"[..])])
            .unwrap();
        file(builder, "a", b"");
    });
    assert!(list(&sparse).is_err());
}

#[test]
fn a_cut_archive_is_an_error_and_a_missing_end_is_not() {
    let bytes = one_file();
    assert!(list(&bytes[..2 * BLOCK]).is_ok());
    for cut in [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1] {
        assert!(
            matches!(list(&bytes[..cut]), Err(TarError::Truncated)),
            "{cut}"
        );
    }
    assert!(list(b"").unwrap().is_empty());
}

#[test]
fn memory_for_extension_headers_is_bounded() {
    let huge = archive(|builder| {
        let mut header = ::tar::Header::new_ustar();
        header.set_entry_type(::tar::EntryType::XHeader);
        header.set_size(1 << 33);
        header.set_cksum();
        builder.append(&header, &b""[..]).unwrap();
    });
    assert!(matches!(list(&huge), Err(TarError::Header { .. })));
    let many = archive(|builder| {
        for _ in 0..5 {
            builder
                .append_pax_extensions([("SCHILY.xattr.user.a", &b"1"[..])])
                .unwrap();
        }
        file(builder, "a", b"");
    });
    assert!(list(&many).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(noise in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = list(&noise);
    }

    #[test]
    fn no_mutation_of_a_good_archive_makes_it_panic(
        changes in proptest::collection::vec((0_usize..2048, any::<u8>()), 1..8),
        resum in any::<bool>(),
    ) {
        let mut bytes = archive(|builder| {
            builder.append_pax_extensions([("mtime", &b"1.25"[..])]).unwrap();
            file(builder, "a/b", b"12345");
        });
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes = if resum { patch(bytes, at, &[byte]) } else { bytes[at] = byte; bytes };
        }
        let _ = list(&bytes);
    }
}

#[test]
fn the_owner_that_means_none_is_refused() {
    for at in [108, 116] {
        let bytes = patch(one_file(), at, b"\x80\0\0\0\xff\xff\xff\xff");
        let error = list(&bytes).unwrap_err().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }
}
