# What every program of a machine with cgroup v2 does first, sourced from /begin: mounts, modules, controllers, and
# standard output to ttyS1.
# Races are tried less often than on a machine that is twenty times as fast.
export PATH=/bin HANOK_PROGRAMS=/programs TMPDIR=/tmp HANOK_RACES=20

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
exec >/dev/ttyS1 2>&1
mkdir -p /dev/pts /dev/mqueue /dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mkdir -p /run/netns
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
ip link set lo up
for module in overlay veth bridge br_netfilter nf_tables nft_masq nft_chain_nat; do
    modprobe "$module"
done
for controller in cpu memory pids cpuset io hugetlb; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done

# The first quota of a machine, and the end of its last, patch the scheduler's code; a second processor that comes by meanwhile
# ends in a kernel panic (int3) under QEMU's emulation. This one quota stays.
mkdir /sys/fs/cgroup/keeps-quota
echo '100000 100000' >/sys/fs/cgroup/keeps-quota/cpu.max

# A cgroup as a service has it: controllers for what it makes, and a leaf for itself.
make_service() {
    mkdir -p "/sys/fs/cgroup/$1/leaf"
    for controller in cpu memory pids cpuset io hugetlb; do
        echo "+$controller" >"/sys/fs/cgroup/$1/cgroup.subtree_control"
    done
}
