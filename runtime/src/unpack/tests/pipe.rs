//! The stages before the tar: formats, bombs, cuts.

use std::io::{Read, Write};

use super::super::pipe::{self, Incoming, Piece, Source};
use crate::content::{ContentStore, Digest};

fn content() -> (tempfile::TempDir, ContentStore) {
    let dir = tempfile::tempdir().unwrap();
    let content = ContentStore::open(dir.path()).unwrap();
    (dir, content)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn inflate(
    content: &ContentStore,
    blob: &[u8],
    max: u64,
) -> Result<(Vec<u8>, Digest), pipe::PipeError> {
    let digest = content.put(blob).unwrap();
    let sink = |reader: &mut dyn std::io::BufRead| {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    };
    let source = Source::Stored(content.clone(), digest);
    Ok(pipe::run(source, max, sink).await?.unwrap())
}

#[tokio::test]
async fn a_layers_format_is_what_its_bytes_say() {
    let (_dir, content) = content();
    let text = b"hello ".repeat(100_000);
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
    let (left, right) = text.split_at(1000);
    for blob in [
        text.clone(),
        gzip(&text),
        [gzip(left), gzip(right)].concat(),
        zstd(&text),
        [zstd(left), zstd(right)].concat(),
    ] {
        let (bytes, digest) = inflate(&content, &blob, u64::MAX).await.unwrap();
        assert!(bytes == text);
        assert_eq!(digest, Digest::of(&text));
    }
    assert_eq!(inflate(&content, b"", 0).await.unwrap().0, b"");
}

#[tokio::test]
async fn a_bomb_is_stopped_and_a_cut_stream_is_an_error() {
    let (_dir, content) = content();
    let zeros = gzip(&vec![0; 1 << 20]);
    let error = inflate(&content, &zeros, 1 << 19).await.unwrap_err();
    assert!(matches!(error, pipe::PipeError::Bomb(_)), "{error}");
    let error = inflate(&content, &zeros[..zeros.len() - 9], u64::MAX)
        .await
        .unwrap_err();
    assert!(matches!(error, pipe::PipeError::Inflate(_)), "{error}");
    let mut garbage = zeros.clone();
    garbage.extend_from_slice(b"trailing");
    assert!(inflate(&content, &garbage, u64::MAX).await.is_err());
}

#[tokio::test]
async fn expansion_beyond_reason_ends_the_stream() {
    let (_dir, content) = content();
    // 1.1 GiB of zeros in some 100 KiB: far beyond the ratio, and stopped soon after the first GiB.
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let zeros = vec![0_u8; 64 << 20];
    for _ in 0..18 {
        encoder.write_all(&zeros).unwrap();
    }
    let digest = content.put(&encoder.finish().unwrap()).unwrap();
    let sink = |reader: &mut dyn std::io::BufRead| {
        std::io::copy(&mut reader.take(u64::MAX), &mut std::io::sink())
    };
    let result = pipe::run(Source::Stored(content, digest), u64::MAX, sink).await;
    assert!(matches!(result, Err(pipe::PipeError::Bomb(_))));
}

#[tokio::test]
async fn what_nobody_waits_for_stops() {
    let (_dir, content) = content();
    let digest = content.put(&vec![7; 64 << 20]).unwrap();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let (end, ended) = tokio::sync::oneshot::channel();
    let sink = move |reader: &mut dyn std::io::BufRead| {
        begun.send(()).unwrap();
        may_go_on.recv().unwrap();
        let read = std::io::copy(reader, &mut std::io::sink());
        end.send(read.map_err(|error| error.kind())).unwrap();
        Ok::<(), std::io::Error>(())
    };
    let run = tokio::spawn(pipe::run(Source::Stored(content, digest), u64::MAX, sink));
    has_begun.await.unwrap();
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    go_on.send(()).unwrap();
    assert_eq!(ended.await.unwrap(), Err(std::io::ErrorKind::BrokenPipe));
}

#[tokio::test]
async fn a_blob_counts_only_when_its_end_came() {
    let (dir, content) = content();
    let blob = b"0123456789".to_vec();
    for (parts, good) in [
        (&[Some(0..5), Some(5..10), None][..], true),
        (&[Some(0..10)], false),
        (&[Some(0..5), None], false),
    ] {
        let (sink, pieces) = tokio::sync::mpsc::channel(8);
        for part in parts.iter().cloned() {
            let piece = part.map_or(Piece::End, |range| Piece::Data(blob[range].to_vec().into()));
            sink.send(piece).await.unwrap();
        }
        drop(sink);
        let ingest = content.ingest().unwrap();
        let incoming = Incoming {
            pieces,
            ingest,
            digest: Digest::of(&blob),
            size: 10,
        };
        assert_eq!(pipe::store(incoming).await.is_ok(), good);
        assert_eq!(content.size(&Digest::of(&blob)).is_some(), good);
        content.remove(&Digest::of(&blob)).unwrap();
    }
    assert_eq!(
        std::fs::read_dir(dir.path().join("ingest"))
            .unwrap()
            .count(),
        0
    );
}
