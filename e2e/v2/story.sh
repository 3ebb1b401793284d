#!/bin/sh
# Runs in the machine whose init is systemd, as its only service: the driver's test, then pods by `hanok run`, bundles by
# `hanok oci`, the agent as a unit, and what systemd says of them. Prints its results as the other tests do, and turns off.
scope= unit_of_container= runner= driver=
suite=systemd
# shellcheck source=e2e/v2/units.sh
. /tests/units.sh

# Of the container; the other scope of the pod is pause's.
find_scope() {
    scope=$(grep -ls '^sh$' $(cat /sys/fs/cgroup/kubepods.slice/*/cri-containerd-*.scope/cgroup.procs \
        /sys/fs/cgroup/kubepods.slice/*/*/cri-containerd-*.scope/cgroup.procs 2>/dev/null |
        sed 's|.*|/proc/&/comm|') | head -n 1)
    scope=$(sed -n 's|^0::||p' "${scope%comm}cgroup")
    unit_of_container=$(basename "$scope")
}

pod_is_slices_and_scopes() {
    write_pod limits '{limits: {cpu: 500m, memory: 64Mi}}' 'echo I run; sleep 300 & wait'
    start limits || return 1
    find_scope
    echo "$scope"
    echo "$scope" | grep -Eq '^/kubepods.slice/kubepods-pod[0-9a-f_]{36}.slice/cri-containerd-[0-9a-f]{64}.scope$' || return 1
    slice=$(basename "$(dirname "$scope")")
    says "$unit_of_container" MemoryMax=67108864 CPUQuotaPerSecUSec=500ms Delegate=yes "Slice=$slice" \
        TasksMax=infinity ActiveState=active || return 1
    says "$slice" MemoryMax=67108864 CPUQuotaPerSecUSec=500ms ActiveState=active || return 1
    says kubepods-besteffort.slice ActiveState=active CPUWeight=1 || return 1
    grep -qx 67108864 "/sys/fs/cgroup$scope/memory.max" || return 1
    grep -qx 1 "/sys/fs/cgroup$scope/memory.oom.group" || return 1
    # pause has a scope of its own, aside.
    for _ in $(seq 50); do
        [ "$(find "/sys/fs/cgroup/kubepods.slice/$slice" -name 'cri-containerd-*.scope' | wc -l)" = 2 ] && break
        sleep 0.2
    done
    systemd-cgls --no-pager /kubepods.slice
    [ "$(systemd-cgls --no-pager /kubepods.slice | grep -c 'cri-containerd-.*scope')" = 2 ]
}

limits_outlive_systemd_that_starts_anew() {
    systemctl daemon-reload && systemctl daemon-reexec || return 1
    says "$unit_of_container" MemoryMax=67108864 ActiveState=active &&
        grep -qx 67108864 "/sys/fs/cgroup$scope/memory.max" &&
        grep -qx '50000 100000' "/sys/fs/cgroup$scope/cpu.max"
}

# Nobody wants its pod, as the pods of every run are others': it is found by its record, and ended.
killed_hanok_comes_back_and_ends_its_units() {
    kill -KILL "$runner"
    wait "$runner"
    says "$unit_of_container" ActiveState=active || return 1
    write_pod next '{}' 'echo I run; sleep 300 & wait'
    start next || return 1
    for _ in $(seq 100); do
        [ -d "/sys/fs/cgroup$scope" ] || break
        sleep 0.2
    done
    says "$unit_of_container" LoadState=not-found || return 1
    find_scope
    echo "$scope"
    echo "$scope" | grep -q '^/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod' || return 1
    kill -TERM "$runner"
    wait "$runner"
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
 "linux": {"cgroupsPath": "box.slice:hanok:b1", "resources": {"memory": {"limit": 33554432}},
  "namespaces": [{"type": "mount"}, {"type": "pid"}]}}
END
}

bundle_is_the_scope_that_it_names() {
    write_bundle '["cat", "/proc/self/cgroup"]'
    hanok oci --systemd-cgroup run --bundle "$work/bundle" b1 </dev/null | tee "$work/oci.out"
    grep -qx '0::/box.slice/hanok-b1.scope' "$work/oci.out" || return 1
    write_bundle '["sleep", "300"]'
    hanok oci --systemd-cgroup run --detach --bundle "$work/bundle" b1 >/dev/null </dev/null || return 1
    says hanok-b1.scope MemoryMax=33554432 Slice=box.slice ActiveState=active || return 1
    grep -qx 33554432 /sys/fs/cgroup/box.slice/hanok-b1.scope/memory.max || return 1
    hanok oci --systemd-cgroup update --memory 67108864 --cpu-quota 50000 --cpu-period 100000 b1 || return 1
    systemctl daemon-reload && systemctl daemon-reexec || return 1
    says hanok-b1.scope MemoryMax=67108864 CPUQuotaPerSecUSec=500ms || return 1
    grep -qx 67108864 /sys/fs/cgroup/box.slice/hanok-b1.scope/memory.max &&
        grep -qx '50000 100000' /sys/fs/cgroup/box.slice/hanok-b1.scope/cpu.max || return 1
    hanok oci delete --force b1 || return 1
    says hanok-b1.scope LoadState=not-found && [ ! -d /sys/fs/cgroup/box.slice/hanok-b1.scope ]
}

# The processes of the static pod's container, and its keeper's.
pod_processes() {
    sort "/sys/fs/cgroup$scope/cgroup.procs"
    grep -lx hanok-shim /proc/[0-9]*/comm
}

# With the unit, its drop-in for standalone nodes and the configuration that a user would take.
agent_is_a_unit_and_says_when_it_is_ready() {
    mkdir -p /etc/hanok/manifests /usr/local/bin
    ln -s /programs/hanok /usr/local/bin/hanok
    hanok image import "$work/image.tar" >/dev/null || return 1
    write_pod still '{limits: {cpu: 500m, memory: 48Mi}}' 'echo I run; sleep 1000 & wait'
    cp "$work/still.yaml" /etc/hanok/manifests/
    systemctl daemon-reload
    systemctl start hanok || { systemctl status --no-pager hanok; cat "$work/agent.log"; return 1; }
    says hanok.service Type=notify ActiveState=active SubState=running KillMode=process Delegate=yes || return 1
    # It serves by the time that it is ready.
    curl -sSf http://127.0.0.1:10248/healthz
}

static_pod_of_the_unit_is_slices_and_scopes_beside_it() {
    agent_says '"ready":true' || return 1
    find_scope
    echo "$scope"
    echo "$scope" | grep -Eq '^/kubepods.slice/kubepods-pod[0-9a-f]{32}.slice/cri-containerd-[0-9a-f]{64}.scope$' || return 1
    says "$unit_of_container" MemoryMax=50331648 ActiveState=active || return 1
    pod_processes >"$work/processes"
    [ "$(wc -l <"$work/processes")" -ge 3 ]
}

# Neither container nor shim is another afterwards, and the agent says so.
same_pod() {
    agent_says "$(echo "$unit_of_container" | sed 's/cri-containerd-\(.*\).scope/\1/').*\"restartCount\":0" || return 1
    pod_processes | diff "$work/processes" -
}

unit_that_restarts_harms_no_container() {
    main=$(systemctl show --value --property MainPID hanok)
    systemctl restart hanok || return 1
    [ "$(systemctl show --value --property MainPID hanok)" != "$main" ] || return 1
    same_pod
}

agent_that_is_killed_is_started_again_and_harms_no_container() {
    systemctl kill --kill-who=main --signal=KILL hanok || return 1
    for _ in $(seq 100); do
        [ "$(systemctl show --value --property NRestarts hanok)" = 1 ] && break
        sleep 0.2
    done
    says hanok.service NRestarts=1 && same_pod
}

unit_that_stops_leaves_its_containers() {
    systemctl stop hanok || return 1
    says hanok.service ActiveState=inactive Result=success || return 1
    ! grep -lx hanok /proc/[0-9]*/comm || return 1
    pod_processes | diff "$work/processes" - || return 1
    systemctl daemon-reload && says "$unit_of_container" MemoryMax=50331648 ActiveState=active || return 1
    systemctl start hanok && same_pod
}

manifest_that_goes_takes_its_units_along() {
    rm /etc/hanok/manifests/still.yaml
    for _ in $(seq 150); do
        [ -d "/sys/fs/cgroup$scope" ] || break
        sleep 0.2
    done
    agent_says '"items":\[\]' || return 1
    says "$unit_of_container" LoadState=not-found || return 1
    # The slices of a node stay for its next pods; those of pods do not.
    ! systemctl list-units --all --no-legend --plain 'kubepods*' | grep -- '-pod' || return 1
    systemctl stop hanok kubepods.slice
}

nothing_is_left() {
    left=$(systemctl list-units --all --no-legend --plain 'kubepods*' 'cri-containerd-*'; ls -d /sys/fs/cgroup/kubepods*
        ls /run/netns; grep -l '^hanok' /proc/[0-9]*/comm 2>/dev/null)
    left=$(echo "$left" | grep -v '^$')
    [ -z "$left" ] || { echo "$left"; return 1; }
}

/tests/driver --ignored --nocapture cgroup::systemd || driver=failed
tell image_is_imported
tell pod_is_slices_and_scopes
tell limits_outlive_systemd_that_starts_anew
tell killed_hanok_comes_back_and_ends_its_units
tell whole_container_dies_of_want_of_memory
tell bundle_is_the_scope_that_it_names
tell agent_is_a_unit_and_says_when_it_is_ready
tell static_pod_of_the_unit_is_slices_and_scopes_beside_it
tell unit_that_restarts_harms_no_container
tell agent_that_is_killed_is_started_again_and_harms_no_container
tell unit_that_stops_leaves_its_containers
tell manifest_that_goes_takes_its_units_along
tell nothing_is_left
if result && [ -z "$driver" ]; then echo "systemd: all passed"; fi
