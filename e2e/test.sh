#!/bin/bash
# Runs everything that CI runs, goes on after a failure, and ends with the counts. A step that fails before it
# has counted anything, such as a build, counts as one failed test.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset KUBECONFIG HANOK_LAB HANOK_KEEP_LAB HANOK FOCUS SKIP PROCS PEER

log=$(mktemp)
# What the failed steps said of it, for the end.
causes=$(mktemp)
trap 'rm -f "$log" "$causes"' EXIT
passed=0
failed=0

step() {
    local began=$SECONDS status counts p f
    printf '\n== %s\n' "$*"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    counts=$(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' "$log" |
        awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
    read -r p f <<<"$counts"
    if [ "$status" != 0 ] && [ "$f" = 0 ]; then
        f=1
        printf 'FAILED: %s (exit %s)\n' "$*" "$status"
    fi
    if [ "$f" != 0 ]; then
        printf '\n== what failed in %s\n' "$*" >>"$causes"
        { grep -A 24 -E '^(---- .* stdout ----|failures:)$' "$log" || tail -n 40 "$log"; } |
            head -n 120 | cut -c-400 >>"$causes"
    fi
    passed=$((passed + p))
    failed=$((failed + f))
    printf '== %s: %s s\n' "$*" "$((SECONDS - began))"
}

step make --no-print-directory lint
step make --no-print-directory unit
step make --no-print-directory stories
step make --no-print-directory conformance
step make --no-print-directory oci-conformance
step make --no-print-directory test-v2 WHAT=telling
cat "$causes"
printf '\n%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
