#!/bin/bash
# Runs the root tests of runtime and network in a machine with nothing but cgroup v2. It has no network, lives for
# minutes at most, and everything of it goes with its directory. Prints the tests' own results. Of the library's own
# tests it runs those of cgroups, of the others all that do not measure time.
#
#   e2e/v2/test.sh [WORD ...] [-WORD ...]     only tests whose names hold one of these words, and none of those with -
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=e2e/v2/lib.sh
. e2e/v2/lib.sh

# Seconds that the machine may live. It takes about four to boot, and its processor is some twenty times slower.
readonly LIFE=900
# With the programs of pods beside it.
hanok=${HANOK:-target/release/hanok}

install_machine

# --- the tests
${CARGO:-cargo} test --locked --workspace --no-run 2>"$work/built" || { cat "$work/built" >&2; exit 1; }
binaries=$(sed -nE 's/^ *Executable (unittests src\/lib.rs|tests\/(oci|pod|root)\.rs) \((.*)\)$/\3/p' "$work/built" |
    grep -E '/(hanok_runtime|oci|pod|root)-[0-9a-f]+$')
[ -n "$binaries" ] || { echo "no tests were built" >&2; exit 1; }

# --- the disk
new_root
cp "$(dirname "$hanok")"/hanok-{shim,pause} "$root/programs/"
mkdir -p "$root/lib/cni"
for plugin in bridge host-local loopback portmap static tuning; do
    [ ! -x "/usr/lib/cni/$plugin" ] || cp "/usr/lib/cni/$plugin" "$root/lib/cni/"
done
for binary in $binaries; do
    name=$(basename "$binary")
    add "$binary" "$root/tests/$name"
    strip --strip-debug "$root/tests/$name"
    echo "$name" >>"$root/tests/plan"
done
only=()
for word in "$@"; do
    case $word in
    -*) only+=(--skip "${word#-}") ;;
    *) only+=("$word") chosen=yes ;;
    esac
done
echo "${only[*]}" >"$root/tests/filter"
add "$hanok" "$root/programs/hanok"
strip --strip-debug "$root/programs/hanok"
ln -s /programs/hanok "$root/bin/hanok"
cp "$here/run.sh" "$root/tests/run"
cp "$here/pods.sh" "$root/tests/"
[ -n "${chosen-}" ] || echo run >>"$root/tests/plan"
planned=$(wc -l <"$root/tests/plan")
cp "$here/machine.sh" "$root/init"
make_disk 2G

# --- the machine
run_machine "$LIFE" -nic none
# Its last word, and a result of every program: without them, something did not come to its end.
grep -qx 'v2: all passed' "$work/output" || { echo "the machine with cgroup v2 did not pass" >&2; exit 1; }
told=$(grep -c '^test result: ' "$work/output" || true)
[ "$told" = "$planned" ] || { echo "$planned programs were to tell their results, $told did" >&2; exit 1; }
