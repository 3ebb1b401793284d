# Told in a machine with AppArmor: which profile a container and what is exec'd in it run under, and what that denies.
# Sourced by labelsinit.sh, after pods.sh.

# What a container says of itself, after a hook was exec'd in it: both profiles, and whether it may mount.
says='until [ -s /tmp/exec ]; do sleep 0.1; done; echo \"$0 is $(cat /proc/self/attr/current), exec $(cat /tmp/exec),
    $(mount -t tmpfs none /mnt 2>/dev/null && echo mounts || echo cannot mount),
    $(echo x 2>/dev/null >/secret/x && echo writes || echo cannot write)\"'

# A container of the pod: its name, its security context.
container() {
    cat <<END
  - name: $1
    image: example.test/busybox:1
    imagePullPolicy: IfNotPresent
    securityContext: $2
    command: [sh, -c, "$(echo $says)", $1]
    lifecycle: {postStart: {exec: {command: [sh, -c, "cat /proc/self/attr/current >/tmp/exec"]}}}
END
}

# The head of a pod: its name, its annotations.
pod() {
    cat <<END
apiVersion: v1
kind: Pod
metadata: {name: $1, annotations: $2}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
END
}

profile_of_the_administrator_is_loaded() {
    cat >"$work/mine" <<'END'
abi <abi/3.0>,
profile mine flags=(attach_disconnected,mediate_deleted) {
  file,
  capability,
  network,
  mount,
  umount,
  signal,
  deny /secret/** w,
}
END
    apparmor_parser --replace --skip-cache "$work/mine" && grep -qx 'mine (enforce)' /sys/kernel/security/apparmor/profiles
}

# One pod for all, as a pod takes seconds here.
pod_of_many_runs() {
    admin='capabilities: {add: [SYS_ADMIN]}'
    {
        pod many '{container.apparmor.security.beta.kubernetes.io/noted: localhost/mine}'
        container silent "{$admin}"
        container default "{$admin, appArmorProfile: {type: RuntimeDefault}}"
        container named "{$admin, appArmorProfile: {type: Localhost, localhostProfile: mine}}"
        container noted "{$admin}"
        container unconfined "{$admin, appArmorProfile: {type: Unconfined}}"
        container privileged '{privileged: true}'
        container both '{privileged: true, appArmorProfile: {type: Localhost, localhostProfile: mine}}'
    } >"$work/many.yaml"
    # shellcheck disable=SC2086 # the places are words
    timeout -s TERM 120 hanok run $where "$work/many.yaml" >"$work/many.out" 2>&1 || { cat "$work/many.out"; return 1; }
}

# What a container of that pod has said.
said() {
    grep -q "$1 is $2, exec $2, $3, $4" "$work/many.out" || { echo "not $2, $3, $4 of $1:"; cat "$work/many.out"; return 1; }
}

container_that_asks_for_nothing_has_the_default_profile() {
    said silent 'cri-containerd.apparmor.d (enforce)' 'cannot mount' writes
}

default_profile_is_enforced_on_a_container_and_its_exec() {
    said default 'cri-containerd.apparmor.d (enforce)' 'cannot mount' writes
}

named_profile_is_enforced_on_a_container_and_its_exec() {
    said named 'mine (enforce)' mounts 'cannot write'
}

annotation_names_a_profile_too() {
    said noted 'mine (enforce)' mounts 'cannot write'
}

unconfined_and_privileged_containers_have_no_profile() {
    said unconfined unconfined mounts writes && said privileged unconfined mounts writes
}

privileged_container_has_the_profile_that_it_names() {
    said both 'mine (enforce)' mounts 'cannot write'
}

profile_that_is_not_loaded_is_an_error_of_its_creation() {
    {
        pod lost '{}'
        container lost '{appArmorProfile: {type: Localhost, localhostProfile: nowhere}}'
    } >"$work/lost.yaml"
    never_runs lost 'apparmor profile not found nowhere'
}

# A bundle with a profile, whose process runs these words.
write_bundle() {
    mkdir -p "$work/bundle"
    [ -d "$work/bundle/rootfs" ] || cp -r "$work/layer" "$work/bundle/rootfs"
    mkdir -p "$work/bundle/rootfs/proc"
    cat >"$work/bundle/config.json" <<END
{"ociVersion": "1.2.0", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "args": $2, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}, "apparmorProfile": "$1"},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"cgroupsPath": "/apparmor/box", "namespaces": [{"type": "mount"}, {"type": "pid"}]}}
END
}

bundle_and_its_exec_run_under_the_profile_that_it_names() {
    write_bundle mine '["cat", "/proc/self/attr/current"]'
    [ "$(hanok oci run --bundle "$work/bundle" b1 </dev/null)" = 'mine (enforce)' ] || return 1
    write_bundle mine '["sleep", "300"]'
    hanok oci run --detach --bundle "$work/bundle" b2 </dev/null >/dev/null || return 1
    own=$(hanok oci exec b2 cat /proc/self/attr/current </dev/null)
    other=$(hanok oci exec --apparmor cri-containerd.apparmor.d b2 cat /proc/self/attr/current </dev/null)
    hanok oci delete --force b2
    echo "$own, $other"
    [ "$own, $other" = 'mine (enforce), cri-containerd.apparmor.d (enforce)' ]
}

bundle_whose_profile_is_not_loaded_does_not_run() {
    write_bundle nowhere '["echo", "it ran"]'
    hanok oci run --bundle "$work/bundle" b3 </dev/null >"$work/oci.out" 2>&1 && return 1
    cat "$work/oci.out"
    grep -q 'cannot apply AppArmor profile' "$work/oci.out" && ! grep -q 'it ran' "$work/oci.out"
}

default_profile_that_was_taken_away_is_loaded_again() {
    echo -n cri-containerd.apparmor.d >/sys/kernel/security/apparmor/.remove
    ! grep -q cri-containerd /sys/kernel/security/apparmor/profiles || return 1
    { pod again '{}'; container again '{}'; } >"$work/again.yaml"
    # shellcheck disable=SC2086 # the places are words
    timeout -s TERM 120 hanok run $where "$work/again.yaml" >"$work/many.out" 2>&1 || { cat "$work/many.out"; return 1; }
    said again 'cri-containerd.apparmor.d (enforce)' 'cannot mount' writes
}

nothing_is_left() {
    left=$(find /sys/fs/cgroup -mindepth 2 -type d -name 'pod*'; ip -o link | grep story0; ls /run/netns)
    [ -z "$left" ] || { echo "$left"; return 1; }
}

tell image_is_imported
tell profile_of_the_administrator_is_loaded
tell pod_of_many_runs
tell container_that_asks_for_nothing_has_the_default_profile
tell default_profile_is_enforced_on_a_container_and_its_exec
tell named_profile_is_enforced_on_a_container_and_its_exec
tell annotation_names_a_profile_too
tell unconfined_and_privileged_containers_have_no_profile
tell privileged_container_has_the_profile_that_it_names
tell profile_that_is_not_loaded_is_an_error_of_its_creation
tell default_profile_that_was_taken_away_is_loaded_again
tell bundle_and_its_exec_run_under_the_profile_that_it_names
tell bundle_whose_profile_is_not_loaded_does_not_run
tell nothing_is_left
