#!/bin/bash
# What `make demo` does: builds hanok and a small image, runs deploy/examples/hello.yaml by `hanok run`, without any
# cluster, fetches its page over the pod's address, and shows where the time of the start went. Everything that it
# makes is below target/demo and /run/hanok-demo, and goes again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}

[ "$(id -u)" = 0 ] || { echo "make demo: a pod needs root: it is namespaces, mounts and cgroups" >&2; exit 1; }
e2e/install.sh build demo
$cargo build --locked --quiet --release --workspace --bin hanok --bin hanok-lab
runtime/build-static.sh target/release
e2e/testapp/build.sh
read -r _ image < <(target/release/hanok-lab images --only testapp)

state=$PWD/target/demo
# Names of its own, so that it disturbs no node on this machine.
run_dir=/run/hanok-demo
where=(--state-dir="$state/state" --run-dir="$run_dir" --bridge-name=hanok-demo0 --pod-cidr=10.86.77.0/24)
hanok=target/release/hanok
rm -rf "$state"
mkdir -p "$state"
output=$state/output
run=
finish() {
    [ -z "$run" ] || kill -TERM "$run" 2>/dev/null || true
    [ -z "$run" ] || wait "$run" || true
}
trap finish EXIT

$hanok image --state-dir="$state/state" import "$image"
$hanok run "${where[@]}" deploy/examples/hello.yaml >"$output" 2>&1 &
run=$!
address=
until [ -n "$address" ]; do
    kill -0 "$run" 2>/dev/null || { cat "$output" >&2; run=; exit 1; }
    sleep 0.05
    address=$(sed -nE 's/.*ready.* ([0-9]+\.[0-9]+\.[0-9]+\.[0-9]+).*/\1/p' "$output" | head -n 1)
done
page=$(target/x86_64-unknown-linux-gnu/shim/hanok-testapp get "http://$address:8080/")
kill -TERM "$run"
wait "$run" && status=0 || status=$?
run=
cat "$output"
printf '\nhttp://%s:8080/ answered: %s\n' "$address" "$page"
rm -rf "$state" "$run_dir"
exit "$status"
