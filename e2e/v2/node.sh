#!/bin/bash
# A node of the lab as a machine with nothing but cgroup v2 (e2e/src/lab/machine.rs): `make` builds its disk, `run`
# becomes the machine.
#
#   node.sh make DIR HANOK   DIR has the files `files` (to be copied, with their paths), `flags` (of hanok) and `network`
#                            (its address and its gateway)
#   node.sh run DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$2
# shellcheck source=e2e/v2/lib.sh
. e2e/v2/lib.sh
find_kernel

case $1 in
make)
    new_root
    hanok=$3
    add "$hanok" "$root/programs/hanok"
    strip --strip-debug "$root/programs/hanok"
    cp "$(dirname "$hanok")"/hanok-{shim,pause} "$root/programs/"
    xargs -r -a "$work/files" cp -r --parents -t "$root"
    cp "$work/flags" "$work/network" "$root/etc/"
    cp "$here/control.sh" "$root/control"
    cp "$here/agent.sh" "$root/agent"
    cp "$here/nodeinit.sh" "$root/init"
    make_disk 6G
    ;;
run)
    machine_command -netdev tap,id=cable,ifname=machine,script=no,downscript=no -device virtio-net-pci,netdev=cable
    exec "${command[@]}"
    ;;
esac
