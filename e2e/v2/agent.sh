#!/bin/sh
# Becomes the node's agent, in a cgroup as a service has it.
echo $$ >/sys/fs/cgroup/agent/leaf/cgroup.procs
set --
while read -r flag; do
    set -- "$@" "$flag"
    case $flag in --run-dir=*) mkdir -p "${flag#*=}" ;; esac
done </etc/flags
export RUST_LOG=info
exec /programs/hanok "$@" </dev/null >/dev/ttyS1 2>&1
