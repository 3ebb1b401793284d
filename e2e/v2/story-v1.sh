#!/bin/sh
# Runs in a machine whose init is systemd, with cgroup v1, as its only service: what story.sh tells of v2, in short. The
# limits are looked for in the files of each hierarchy.
scope= unit_of_container= runner=
suite=v1
# shellcheck source=e2e/v2/units.sh
. /tests/units.sh

# Whether a file of a hierarchy holds this, by a path such as memory/a.slice/memory.limit_in_bytes.
holds() {
    grep -Fqx "$2" "/sys/fs/cgroup/$1" && return 0
    echo "not $2 in $1 but $(cat "/sys/fs/cgroup/$1")"
    return 1
}

# The cgroup of the container's process, the same in every hierarchy that has it.
find_scope() {
    for _ in $(seq 100); do
        process=$(grep -ls '^sh$' $(cat $(find /sys/fs/cgroup/memory/kubepods.slice -path '*scope/cgroup.procs') 2>/dev/null |
            sed 's|.*|/proc/&/comm|') | head -n 1)
        [ -z "$process" ] || break
        sleep 0.2
    done
    process=${process%/comm}
    scope=$(sed -n 's|^[0-9]*:memory:||p' "$process/cgroup")
    unit_of_container=$(basename "$scope")
    echo "$process in $scope"
}

hierarchies_are_those_of_v1() {
    mount | grep ' cgroup'
    [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ] && [ ! -e /sys/fs/cgroup/cgroup.procs ]
}

# Of a pod with half a processor and 64 MiB.
limits_are_in_force() {
    holds "memory$scope/memory.limit_in_bytes" 67108864 && holds "cpu$scope/cpu.cfs_quota_us" 50000 &&
        holds "cpu$scope/cpu.shares" 512 || return 1
    slice=$(dirname "$scope")
    holds "memory$slice/memory.limit_in_bytes" 67108864 && holds "cpu$slice/cpu.cfs_quota_us" 50000
}

pod_is_slices_and_scopes() {
    write_pod limits '{limits: {cpu: 500m, memory: 64Mi}}' 'echo I run; sleep 300 & wait'
    start limits || return 1
    find_scope
    echo "$scope" | grep -Eq '^/kubepods.slice/kubepods-pod[0-9a-f_]{36}.slice/cri-containerd-[0-9a-f]{64}.scope$' ||
        { cat "$work/limits.out"; return 1; }
    slice=$(basename "$(dirname "$scope")")
    says "$unit_of_container" MemoryLimit=67108864 CPUQuotaPerSecUSec=500ms CPUShares=512 Delegate=yes "Slice=$slice" \
        ActiveState=active || return 1
    says "$slice" MemoryLimit=67108864 CPUQuotaPerSecUSec=500ms ActiveState=active || return 1
    # In every hierarchy that limits or counts, and in systemd's own.
    cat "$process/cgroup"
    for controller in cpu cpuacct memory pids cpuset devices; do
        grep -Eq "^[0-9]+:([a-z_,]+,)?$controller(,[a-z_,]+)?:$scope$" "$process/cgroup" ||
            { echo "not in $controller"; return 1; }
    done
    grep -q ":name=systemd:$scope$" "$process/cgroup" || return 1
    limits_are_in_force
}

limits_outlive_systemd_that_starts_anew() {
    systemctl daemon-reload && systemctl daemon-reexec || return 1
    says "$unit_of_container" MemoryLimit=67108864 ActiveState=active && limits_are_in_force
}

run_that_stops_takes_its_units_along() {
    kill -TERM "$runner"
    wait "$runner"
    says "$unit_of_container" LoadState=not-found || return 1
    ! find /sys/fs/cgroup -type d -name 'kubepods-pod*' | grep .
}

# A bundle whose process runs these words.
write_bundle() {
    mkdir -p "$work/bundle"
    cp -r "$work/layer" "$work/bundle/rootfs" 2>/dev/null
    mkdir -p "$work/bundle/rootfs/proc"
    cat >"$work/bundle/config.json" <<END
{"ociVersion": "1.2.0", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "args": $1, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"cgroupsPath": "box.slice:hanok:b1", "resources": {"memory": {"limit": 33554432}, "pids": {"limit": 9},
   "devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 10, "minor": 200, "access": "rw"}]},
  "namespaces": [{"type": "mount"}, {"type": "pid"}]}}
END
}

bundle_is_the_scope_that_it_names() {
    write_bundle '["sleep", "300"]'
    hanok oci --systemd-cgroup run --detach --bundle "$work/bundle" b1 >/dev/null </dev/null || return 1
    box=/box.slice/hanok-b1.scope
    says hanok-b1.scope MemoryLimit=33554432 TasksMax=9 Slice=box.slice ActiveState=active || return 1
    holds "memory$box/memory.limit_in_bytes" 33554432 && holds "pids$box/pids.max" 9 &&
        holds "devices$box/devices.list" 'c 10:200 rw' || return 1
    hanok oci --systemd-cgroup update --memory 67108864 --cpu-quota 50000 --cpu-period 100000 b1 || return 1
    systemctl daemon-reload && systemctl daemon-reexec || return 1
    says hanok-b1.scope MemoryLimit=67108864 CPUQuotaPerSecUSec=500ms TasksMax=9 || return 1
    holds "memory$box/memory.limit_in_bytes" 67108864 && holds "cpu$box/cpu.cfs_quota_us" 50000 &&
        holds "pids$box/pids.max" 9 && holds "devices$box/devices.list" 'c 10:200 rw' || return 1
    hanok oci pause b1 && hanok oci state b1 | grep -q '"paused"' && hanok oci resume b1 || return 1
    hanok oci delete --force b1 || return 1
    says hanok-b1.scope LoadState=not-found && ! find /sys/fs/cgroup -type d -name hanok-b1.scope | grep .
}

static_pod_of_the_unit_is_slices_and_scopes_beside_it() {
    mkdir -p /etc/hanok/manifests /usr/local/bin
    ln -s /programs/hanok /usr/local/bin/hanok
    hanok image import "$work/image.tar" >/dev/null || return 1
    write_pod still '{limits: {cpu: 500m, memory: 64Mi}}' 'echo I run; sleep 1000 & wait'
    cp "$work/still.yaml" /etc/hanok/manifests/
    systemctl start hanok || { systemctl status --no-pager hanok; cat "$work/agent.log"; return 1; }
    agent_says '"ready":true' || return 1
    find_scope
    says "$unit_of_container" MemoryLimit=67108864 CPUQuotaPerSecUSec=500ms ActiveState=active && limits_are_in_force
}

unit_that_stops_leaves_its_containers_and_the_next_one_ends_them() {
    systemctl restart hanok || return 1
    says "$unit_of_container" ActiveState=active && limits_are_in_force && [ -d "$process" ] || return 1
    rm /etc/hanok/manifests/still.yaml
    agent_says '"items":\[\]' || return 1
    for _ in $(seq 150); do
        [ -d "/sys/fs/cgroup/memory$scope" ] || break
        sleep 0.2
    done
    says "$unit_of_container" LoadState=not-found || return 1
    systemctl stop hanok kubepods.slice
}

# The slices of a node stay where systemd does not know the controller.
nothing_is_left() {
    left=$(systemctl list-units --all --no-legend --plain 'kubepods*' 'cri-containerd-*' 'hanok-*'
        find /sys/fs/cgroup -type d \( -name 'kubepods*' -o -name 'cri-containerd-*' -o -name 'hanok*' \) |
            grep -Ev '/(cpuset|hugetlb)/kubepods.slice(/kubepods-(burstable|besteffort).slice)?$'
        ls /run/netns; grep -l '^hanok' /proc/[0-9]*/comm 2>/dev/null)
    left=$(echo "$left" | grep -v '^$')
    [ -z "$left" ] || { echo "$left"; return 1; }
}

tell hierarchies_are_those_of_v1
tell image_is_imported
tell pod_is_slices_and_scopes
tell limits_outlive_systemd_that_starts_anew
tell run_that_stops_takes_its_units_along
tell bundle_is_the_scope_that_it_names
tell static_pod_of_the_unit_is_slices_and_scopes_beside_it
tell unit_that_stops_leaves_its_containers_and_the_next_one_ends_them
tell nothing_is_left
if result; then echo "systemd: all passed"; fi
