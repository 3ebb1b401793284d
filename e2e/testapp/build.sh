#!/bin/bash
# Builds the stories' test program without shared libraries, so that it can run alone in an image.
# With --target, build scripts and macros of other builds keep their own flags and caches.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
RUSTFLAGS="-C target-feature=+crt-static" \
    ${CARGO:-cargo} build --locked --quiet --profile shim --target x86_64-unknown-linux-gnu --package hanok-testapp
