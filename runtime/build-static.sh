#!/bin/sh
# Builds the two static programs of a pod into OUTDIR: hanok-shim and hanok-pause; with `oci` hanok-oci too.
# usage: runtime/build-static.sh OUTDIR [oci]
# CARGO names the cargo to use. Prints nothing when all are fresh.
set -eu

[ $# -eq 1 ] || { [ $# -eq 2 ] && [ "$2" = oci ]; } || { echo "usage: $0 OUTDIR [oci]" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
target="$root/target/static"
triple=x86_64-unknown-linux-gnu
cargo=${CARGO:-cargo}

# Static so that nothing of the node is loaded into them, and not position-independent: fewer relocations are fewer
# private pages in every pod, and fewer page faults in every command.
build_static() {
    CARGO_TARGET_DIR="$target" RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" \
        LIBSECCOMP_LINK_TYPE=static LIBSECCOMP_LIB_PATH="$(pkg-config --variable=libdir libseccomp)" \
        $cargo build --quiet --manifest-path "$root/Cargo.toml" --profile shim -p "$1" --bin "$1" --target $triple
}

# A running program is replaced by rename, never written to; an equal one keeps its time.
install_program() {
    cmp -s "$1" "$out/$2" && return
    cp "$1" "$out/.$2.tmp"
    mv -f "$out/.$2.tmp" "$out/$2"
}

build_static hanok-shim
install_program "$target/$triple/shim/hanok-shim" hanok-shim
CARGO_TARGET_DIR="$target" \
    $cargo build --quiet --manifest-path "$root/runtime/pause/Cargo.toml" --release
install_program "$target/release/hanok-pause" hanok-pause
if [ $# -eq 2 ]; then
    build_static hanok-oci
    install_program "$target/$triple/shim/hanok-oci" hanok-oci
fi
