#!/bin/sh
# The first program of a machine with a security module, which the kernel's words name: runs its story and turns off.
. /begin
mount -t securityfs securityfs /sys/kernel/security
module=$(sed -E 's/.*security=([a-z]+).*/\1/' /proc/cmdline)
make_service "$module"
echo 0 >"/sys/fs/cgroup/$module/leaf/cgroup.procs"
work=/tmp/$module
where="--state-dir=$work/state --run-dir=/run/$module --bridge-name=story0 --pod-cidr=10.85.0.0/24"
suite=$module
# shellcheck source=e2e/v2/pods.sh
. /tests/pods.sh

# Whether a pod of that name says why it cannot run, in words like these, and no container of it ever runs.
never_runs() {
    # shellcheck disable=SC2086 # the places are words
    hanok run $where "$work/$1.yaml" >"$work/$1.out" 2>&1 &
    runner=$!
    for _ in $(seq 100); do
        grep -q "$2" "$work/$1.out" && break
        sleep 0.2
    done
    kill -TERM "$runner"
    wait "$runner"
    cat "$work/$1.out"
    grep -q "$2" "$work/$1.out" && ! grep -q ', exec' "$work/$1.out"
}

# shellcheck disable=SC1090 # it is one of two
. "/tests/$module.sh"
if result; then echo "$module: all passed"; fi
echo "$(cut -d. -f1 /proc/uptime) s"
sync
poweroff -f
