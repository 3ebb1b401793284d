#!/bin/sh
# Builds the two static programs of a pod into OUTDIR: hanok-shim and hanok-pause.
# usage: runtime/build-static.sh OUTDIR
# CARGO names the cargo to use. Prints nothing when both are fresh.
set -eu

[ $# -eq 1 ] || { echo "usage: $0 OUTDIR" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
target="$root/target/static"
cargo=${CARGO:-cargo}

# The shim is static so that nothing of the node is loaded into it, and not position-independent: fewer
# relocations are fewer private pages in every pod.
CARGO_TARGET_DIR="$target" RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" \
    $cargo build --quiet --manifest-path "$root/Cargo.toml" --profile shim -p hanok-shim \
    --bin hanok-shim --target x86_64-unknown-linux-gnu
CARGO_TARGET_DIR="$target" \
    $cargo build --quiet --manifest-path "$root/runtime/pause/Cargo.toml" --release

# A running program is replaced by rename, never written to; an equal one keeps its time.
install_program() {
    cmp -s "$1" "$out/$2" && return
    cp "$1" "$out/.$2.tmp"
    mv -f "$out/.$2.tmp" "$out/$2"
}
install_program "$target/x86_64-unknown-linux-gnu/shim/hanok-shim" hanok-shim
install_program "$target/release/hanok-pause" hanok-pause
