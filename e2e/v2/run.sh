#!/bin/sh
# Runs in the machine with cgroup v2: manifests by `hanok run`.
set -u
work=/tmp/run
where="--state-dir=$work/state --run-dir=/run/run-story --bridge-name=story0 --pod-cidr=10.85.0.0/24"
suite=run
# shellcheck source=e2e/v2/pods.sh
. /tests/pods.sh

limits_are_in_force() {
    show='cd /sys/fs/cgroup; for f in memory.max memory.swap.max memory.oom.group cpu.max cpu.weight; do echo $f=$(cat $f); done'
    run limits '{limits: {cpu: 500m, memory: 64Mi}}' "$show" || { cat "$work/limits.out"; return 1; }
    for line in memory.max=67108864 memory.oom.group=1 'cpu.max=50000 100000' cpu.weight=59; do
        grep -q "$line" "$work/limits.out" || { echo "no $line:"; cat "$work/limits.out"; return 1; }
    done
    # Where there is no swap there is no such file.
    ! grep -q 'memory.swap.max=[^0]' "$work/limits.out"
}

nothing_is_left() {
    left=$(find /sys/fs/cgroup -mindepth 2 -type d -name 'pod*'; ip -o link | grep story0; ls /run/netns)
    [ -z "$left" ] || { echo "$left"; return 1; }
}

tell image_is_imported
tell limits_are_in_force
tell whole_container_dies_of_want_of_memory
tell nothing_is_left
result
