#!/bin/sh
# The machine's only service: runs the tests of /tests/plan, each program in a cgroup of its own, and turns off.
export PATH=/bin HANOK_PROGRAMS=/programs TMPDIR=/tmp
# Seconds that one program of tests may take.
LIMIT=600

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666 pts /dev/pts
# No /dev/shm: tests would work in it, and this kernel maps no ids of a tmpfs.
mount -t tmpfs run /run
mkdir -p /run/netns
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
ip link set lo up
for module in overlay veth bridge br_netfilter nf_tables nft_masq nft_chain_nat; do
    modprobe "$module"
done
cd /sys/fs/cgroup
for controller in cpu memory pids cpuset io hugetlb; do
    echo "+$controller" >cgroup.subtree_control
done
cd /

failed=
for program in $(cat /tests/plan); do
    # As a service has it: controllers for what it makes, and a leaf for itself.
    mkdir -p "/sys/fs/cgroup/$program/leaf"
    for controller in cpu memory pids cpuset io hugetlb; do
        echo "+$controller" >"/sys/fs/cgroup/$program/cgroup.subtree_control"
    done
    echo "v2: $program"
    # Of the library's own tests those of cgroups; of the others not those that measure time.
    case $program in
    hanok_runtime-*) only='--test-threads=4 cgroup::' ;;
    run) only= ;;
    *) only="--test-threads=4 --skip within_milliseconds $(cat /tests/filter)" ;;
    esac
    (
        echo 0 >"/sys/fs/cgroup/$program/leaf/cgroup.procs"
        exec timeout -s KILL "$LIMIT" "/tests/$program" $only
    ) 2>&1 </dev/null || failed="$failed $program"
done
if [ -z "$failed" ]; then
    echo "v2: all passed"
else
    echo "v2: failed:$failed"
fi
sync
poweroff -f
