# Told in a machine with SELinux: what labels containers, what is exec'd in them and their files have, and what that
# denies. Sourced by labelsinit.sh, after pods.sh. The policy is labels.te.

# A bundle: the label of its process and of its mounts, its words.
write_bundle() {
    mkdir -p "$work/bundle"
    [ -d "$work/bundle/rootfs" ] || cp -r "$work/layer" "$work/bundle/rootfs"
    mkdir -p "$work/bundle/rootfs/proc" "$work/bundle/rootfs/dev"
    cat >"$work/bundle/config.json" <<END
{"ociVersion": "1.2.0", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "args": $3, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}, "selinuxLabel": "$1"},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
  {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"}],
 "linux": {"cgroupsPath": "/selinux/box", "mountLabel": "$2",
  "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}]}}
END
}

# Whether a bundle's process does not run, and this is the reason.
refused() {
    hanok oci run --bundle "$work/bundle" no </dev/null >"$work/oci.out" 2>&1 && return 1
    cat "$work/oci.out"
    grep -q "$1" "$work/oci.out" && ! grep -q 'it ran' "$work/oci.out"
}

# What all has that is no container's.
base=system_u:system_r:base_t:s0-s0:c0.c1023

# The kernel takes any label then, and it means nothing.
without_a_policy_a_label_is_refused() {
    [ "$(tr -d '\0' </proc/self/attr/current)" = kernel ] || return 1
    write_bundle system_u:system_r:container_t:s0 '' '["echo", "it ran"]'
    refused 'process.selinuxLabel is given, but SELinux is not enabled' || return 1
    write_bundle '' system_u:object_r:container_file_t:s0 '["echo", "it ran"]'
    refused 'linux.mountLabel is given, but SELinux is not enabled' || return 1
    write_bundle '' '' '["echo", "it ran"]'
    [ "$(hanok oci run --bundle "$work/bundle" b0 </dev/null)" = 'it ran' ]
}

policy_is_loaded_and_enforced() {
    dd if=/etc/policy of=/sys/fs/selinux/load bs=1M 2>/dev/null && echo 1 >/sys/fs/selinux/enforce || return 1
    [ "$(tr -d '\0' </proc/self/attr/current)" = "$base" ]
}

# The head of a pod: its name, its security context, its volumes.
pod() {
    cat <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: $2
  volumes:
  - {name: own, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: node, hostPath: {path: $work/node}}
  containers:
END
}

# What a container says of itself, of what is mounted for it with a label, and of what it may change, after a hook was
# exec'd in it. The policy lets it change nothing but files with the label of its own.
says='until [ -s /tmp/exec ]; do sleep 0.1; done; echo \"$0 is $(cat /proc/self/attr/current), exec $(cat /tmp/exec)\";
    for place in / /dev /dev/shm /dev/pts; do
        echo \"$0 has $place $(grep \" / $place \" /proc/self/mountinfo | grep -o system_u:[a-z0-9_:,]*)\"; done;
    for file in /new /dev/shm/new /own/new /memory/new /etc/hosts /etc/hostname /node/new; do
        true >>$file && echo \"$0 changes $file\"; done 2>/dev/null; echo \"$0 ends\"'

# A container of the pod: its name, its security context.
container() {
    cat <<END
  - name: $1
    image: example.test/busybox:1
    imagePullPolicy: IfNotPresent
    securityContext: $2
    command: [sh, -c, "$(echo $says)", $1]
    lifecycle: {postStart: {exec: {command: [sh, -c, "cat /proc/self/attr/current >/tmp/exec"]}}}
    volumeMounts:
    - {name: own, mountPath: /own}
    - {name: memory, mountPath: /memory}
    - {name: node, mountPath: /node}
END
}

# What a container of a pod has said.
said() {
    file=$1
    shift
    for wanted in "$@"; do
        grep -Eq "$wanted" "$work/$file.out" || { echo "not $wanted:"; cat "$work/$file.out"; return 1; }
    done
}

pods_run() {
    mkdir -p "$work/node"
    {
        pod whole '{seLinuxOptions: {level: "s0:c1,c2"}}'
        container silent '{}'
        container privileged '{privileged: true}'
        echo ---
        pod bare '{}'
        container bare '{}'
        container other '{seLinuxOptions: {type: other_t}}'
    } >"$work/whole.yaml"
    # shellcheck disable=SC2086 # the places are words
    timeout -s TERM 120 hanok run $where "$work/whole.yaml" >"$work/whole.out" 2>&1 ||
        { cat "$work/whole.out"; return 1; }
}

label=system_u:system_r:container_t:s0:c1,c2
files=system_u:object_r:container_file_t:s0:c1,c2

container_and_its_exec_have_the_label_of_their_pod() {
    said whole "silent is $label, exec $label\$"
}

root_and_mounts_have_the_label_of_the_containers_files() {
    for place in / /dev /dev/shm /dev/pts; do said whole "silent has $place $files\$" || return 1; done
    said whole 'silent changes /new' 'silent changes /dev/shm/new'
}

volumes_of_the_pod_are_relabelled_and_those_of_the_node_are_not() {
    for file in /own/new /memory/new /etc/hosts /etc/hostname; do said whole "silent changes $file" || return 1; done
    said whole 'silent ends' && ! grep 'silent changes /node' "$work/whole.out"
}

privileged_container_keeps_the_label_of_the_shim() {
    said whole "privileged is $base, exec $base\$" \
        "privileged has / $files\$" 'privileged changes /node/new'
}

pod_that_asks_for_nothing_has_categories_of_its_own() {
    said whole 'bare is system_u:system_r:container_t:s0:c[0-9]+,c[0-9]+, exec' 'bare changes /own/new' 'bare ends' &&
        ! grep "bare is $label\|bare changes /node" "$work/whole.out"
}

container_with_a_type_of_its_own_shares_the_categories_of_its_pod() {
    level=$(sed -nE 's/.*bare is system_u:system_r:container_t:(s0:c[0-9]+,c[0-9]+),.*/\1/p' "$work/whole.out")
    [ -n "$level" ] || return 1
    said whole "other is system_u:system_r:other_t:$level, exec system_u:system_r:other_t:$level\$" \
        'other changes /own/new' 'other changes /dev/shm/new'
}

label_that_the_policy_does_not_have_is_an_error_of_its_creation() {
    {
        pod lost '{seLinuxOptions: {type: nowhere_t}}'
        container lost '{}'
    } >"$work/lost.yaml"
    never_runs lost 'policy does not have the SELinux label .*nowhere_t'
}

bundle_and_its_exec_have_the_label_that_it_names() {
    write_bundle $label $files '["sh", "-c", "cat /proc/self/attr/current; grep -o object.*c2 /proc/self/mountinfo | sort -u"]'
    own=$(hanok oci run --bundle "$work/bundle" b1 </dev/null | tr -d '\0' | tr '\n' ' ')
    echo "$own"
    [ "$own" = "$label${files#system_u:} " ] || return 1
    write_bundle $label '' '["sleep", "300"]'
    hanok oci run --detach --bundle "$work/bundle" b2 </dev/null >/dev/null || return 1
    own=$(hanok oci exec b2 cat /proc/self/attr/current </dev/null | tr -d '\0')
    other=$(hanok oci exec --process-label system_u:system_r:other_t:s0 b2 cat /proc/self/attr/current </dev/null | tr -d '\0')
    hanok oci delete --force b2
    echo "$own, $other"
    [ "$own, $other" = "$label, system_u:system_r:other_t:s0" ] || return 1
    write_bundle system_u:system_r:nowhere_t:s0 '' '["echo", "it ran"]'
    refused 'cannot apply SELinux label'
}

nothing_is_left() {
    left=$(find /sys/fs/cgroup -mindepth 2 -type d -name 'pod*'; ip -o link | grep story0; ls /run/netns)
    [ -z "$left" ] || { echo "$left"; return 1; }
}

mount -t selinuxfs selinuxfs /sys/fs/selinux
tell image_is_imported
tell without_a_policy_a_label_is_refused
tell policy_is_loaded_and_enforced
mkdir -p /etc/selinux/page/contexts
echo SELINUXTYPE=page >/etc/selinux/config
printf 'process = "system_u:system_r:container_t:s0"\nfile = "system_u:object_r:container_file_t:s0"\n' \
    >/etc/selinux/page/contexts/lxc_contexts
tell pods_run
tell container_and_its_exec_have_the_label_of_their_pod
tell root_and_mounts_have_the_label_of_the_containers_files
tell volumes_of_the_pod_are_relabelled_and_those_of_the_node_are_not
tell privileged_container_keeps_the_label_of_the_shim
tell pod_that_asks_for_nothing_has_categories_of_its_own
tell container_with_a_type_of_its_own_shares_the_categories_of_its_pod
tell label_that_the_policy_does_not_have_is_an_error_of_its_creation
tell bundle_and_its_exec_have_the_label_that_it_names
tell nothing_is_left
