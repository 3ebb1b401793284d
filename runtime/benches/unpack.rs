//! How fast a layer is unpacked: ours against `tar -xzf` of the same layer, in turns.
//!
//! `cargo bench -p hanok-runtime --bench unpack [-- MEGABYTES]` as root. The layer is made of this
//! machine's own programs. Prints name, value, unit, what it is measured against, and the ratio; the best
//! of all rounds counts. Ours hashes the blob and the content as well, and checks them; tar does not.

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs::{self, File};
use std::io::{BufRead, BufWriter};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hanok_runtime::content::{ContentStore, Digest};
use hanok_runtime::snapshot::overlay::Overlay;
use hanok_runtime::snapshot::{Key, Snapshotter, Usage};
use hanok_runtime::unpack::Limits;
use hanok_runtime::unpack::pipe::{self, Source};

/// Uncompressed size of the layer when nobody says otherwise.
const MEGABYTES: u64 = 96;
/// Rounds of each side.
const ROUNDS: usize = 3;

fn main() {
    let size = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(MEGABYTES);
    let dir = tempfile::Builder::new()
        .prefix("hanok-images-bench-")
        .tempdir()
        .expect("a directory");
    let layer = dir.path().join("layer.tar.gz");
    make_layer(&layer, size << 20);
    let content = ContentStore::open(&dir.path().join("content")).expect("a store");
    let blob = content
        .put(&fs::read(&layer).expect("the layer"))
        .expect("a blob");
    let overlay = Overlay::open(&dir.path().join("overlay"), Limits::default()).expect("snapshots");
    let overlay = std::sync::Arc::new(overlay);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");

    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    let mut usage = Usage::default();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        usage = runtime.block_on(unpack(&content, &blob, &overlay));
        ours = ours.min(begin.elapsed());
        let chain = Digest::of(b"bench");
        overlay.remove(Key::Layer(&chain)).expect("removed");
        theirs = theirs.min(tar(dir.path(), &layer));
    }
    let speed = |time: Duration| usage.bytes as f64 / 1e6 / time.as_secs_f64();
    println!(
        "unpack_gzip_layer\t{:.0}\tMB/s\ttar -xzf {:.0}\t{:.2}",
        speed(ours),
        speed(theirs),
        speed(ours) / speed(theirs)
    );
}

async fn unpack(content: &ContentStore, blob: &Digest, overlay: &std::sync::Arc<Overlay>) -> Usage {
    let snapshots = std::sync::Arc::clone(overlay);
    let sink = move |tar: &mut dyn BufRead| snapshots.unpack(tar, None);
    let source = Source::Stored(content.clone(), *blob);
    let unpacked = pipe::run(source, u64::MAX, sink).await.expect("inflated");
    let (draft, _) = unpacked.expect("unpacked");
    let usage = draft.usage();
    overlay
        .commit(draft, &Digest::of(b"bench"), &[])
        .expect("committed");
    usage
}

fn tar(dir: &Path, layer: &Path) -> Duration {
    let target = dir.join("tar");
    fs::create_dir(&target).expect("a directory");
    let begin = Instant::now();
    let status = Command::new("tar")
        .arg("-xzf")
        .arg(layer)
        .arg("-C")
        .arg(&target)
        .status();
    let elapsed = begin.elapsed();
    assert!(status.expect("tar runs").success());
    fs::remove_dir_all(&target).expect("removed");
    elapsed
}

/// Programs and documents of this machine, large and small, up to `size`.
fn make_layer(path: &Path, size: u64) {
    let file = BufWriter::new(File::create(path).expect("a file"));
    let encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    let mut builder = tar::Builder::new(encoder);
    let mut total = 0;
    for dir in [
        "/usr/share/doc",
        "/usr/bin",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/sbin",
    ] {
        // A share for each, so that the many small files are in.
        let end = total + size / 4;
        let mut todo = vec![Path::new(dir).to_owned()];
        while let Some(path) = todo.pop() {
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            if meta.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                todo.extend(entries.map(|entry| entry.path()));
            } else if meta.is_file() && total < end {
                let name = path.strip_prefix("/").expect("absolute");
                builder.append_path_with_name(&path, name).expect("added");
                total += meta.len();
            }
        }
    }
    builder
        .into_inner()
        .and_then(flate2::write::GzEncoder::finish)
        .expect("finished");
}
