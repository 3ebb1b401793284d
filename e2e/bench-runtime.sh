#!/bin/bash
# How long `hanok oci` takes for a container and for an exec, each beside Debian's runc and crun in the same run, and
# beside a floor: unshare(1) with the same namespaces and a changed root, which makes no mounts, cgroups or limits and
# so cannot be reached. One line a figure: name, median, 90th percentile, milliseconds; then ratios of medians.
#
#   bench-runtime.sh HANOK [ROUNDS]
set -euo pipefail
export LC_ALL=C

# crun takes no v2 hierarchy beside v1; a mount namespace of our own lets us do without it.
if [ "${1:-}" != --inside ]; then
    exec unshare --mount --propagation private "${BASH_SOURCE[0]}" --inside "$@"
fi
shift
if mountpoint --quiet /sys/fs/cgroup/unified; then
    umount --lazy /sys/fs/cgroup/unified
fi
hanok=$(realpath "$1")
rounds=${2:-30}

dir=$(mktemp -d /dev/shm/hanok-bench-XXXXXX)
names=(hanok runc crun)
declare -A command=([hanok]="$hanok oci" [runc]=runc [crun]=crun)
call() { # NAME ARGUMENT...: that runtime, with a root directory of its own
    local name=$1
    shift
    # shellcheck disable=SC2086
    ${command[$name]} --root "$dir/state-$name" "$@"
}
clear_up() {
    for name in "${names[@]}"; do
        call "$name" delete --force "bench-$$-$name" >/dev/null 2>&1 || true
    done
    rm -rf "$dir"
}
trap clear_up EXIT

mkdir -p "$dir"/rootfs/{bin,proc,sys,dev,tmp,etc}
cp /bin/busybox "$dir/rootfs/bin/"
for applet in true sleep; do
    ln -s busybox "$dir/rootfs/bin/$applet"
done
cd "$dir"
runc spec
sed -i 's/"terminal": true/"terminal": false/; s/"sh"$/"\/bin\/true"/' config.json
mkdir sleeper
sed 's/"\/bin\/true"$/"\/bin\/sleep", "1000"/; s/"path": "rootfs"/"path": "..\/rootfs"/' config.json >sleeper/config.json

now() { echo "${EPOCHREALTIME/./}"; }
measure() { # FIGURE COMMAND...: appends microseconds
    local figure=$1 began
    shift
    began=$(now)
    "$@" </dev/null >/dev/null 2>&1 || { echo "bench-runtime.sh: failed: $*" >&2; exit 1; }
    echo $(($(now) - began)) >>"$dir/$figure"
}
floor() {
    unshare --mount --pid --fork --ipc --uts --net --cgroup --root "$dir/rootfs" /bin/true
}
for name in "${names[@]}"; do
    call "$name" run --detach --bundle sleeper "bench-$$-$name" </dev/null >/dev/null 2>&1
done
# In turn, so that what else happens on the machine happens to all.
for ((round = 0; round < rounds; round++)); do
    for name in "${names[@]}"; do
        measure "run-$name" call "$name" run "bench-$$-$name-$round"
        measure "exec-$name" call "$name" exec "bench-$$-$name" /bin/true
    done
    measure run-floor floor
done

percentile() { sort -n "$1" | awk -v share="$2" '{ a[NR] = $1 } END { print a[int((NR - 1) * share / 100) + 1] }'; }
for what in run exec; do
    for name in "${names[@]}" floor; do
        [ -e "$what-$name" ] || continue
        awk -v n="$what-$name" -v a="$(percentile "$what-$name" 50)" -v b="$(percentile "$what-$name" 90)" -v r="$rounds" \
            'BEGIN { printf "%-12s %8.2f %8.2f ms  %d rounds\n", n, a / 1000, b / 1000, r }'
    done
    for name in runc crun floor; do
        [ -e "$what-$name" ] || continue
        awk -v n="$what: hanok / $name" -v a="$(percentile "$what-hanok" 50)" -v b="$(percentile "$what-$name" 50)" \
            'BEGIN { printf "%-24s %.2f\n", n, a / b }'
    done
done
