# Sourced by what runs as the only service of a machine whose init is systemd, after `suite` is set: sets the machine up, turns
# it off in the end, and tells what systemd and an agent say.
export PATH=/bin HANOK_PROGRAMS=/programs TMPDIR=/tmp
exec >/dev/ttyS1 2>&1 </dev/null
mkdir -p /dev/mqueue /run/netns
mount -t mqueue mqueue /dev/mqueue
ip link set lo up
for module in overlay veth bridge br_netfilter nf_tables nft_masq nft_chain_nat; do modprobe "$module"; done

work=/tmp/story
where="--cgroup-driver=systemd --cgroup-root=/ --state-dir=$work/state --run-dir=/run/story --bridge-name=story0
    --pod-cidr=10.85.0.0/24"
trap "sync; poweroff -f" EXIT
# shellcheck source=e2e/v2/pods.sh
. /tests/pods.sh

# Waits until a pod has said that it runs.
start() {
    # shellcheck disable=SC2086 # the places are words
    hanok run $where "$work/$1.yaml" >"$work/$1.out" 2>&1 &
    runner=$!
    for _ in $(seq 200); do
        grep -q "I run" "$work/$1.out" && return 0
        kill -0 "$runner" || break
        sleep 0.2
    done
    cat "$work/$1.out"
    return 1
}

# Whether systemd says so of a unit: its name, then property=value ...
says() {
    unit=$1
    shift
    for wanted in "$@"; do
        systemctl show --property "${wanted%%=*}" "$unit" | grep -Fqx "$wanted" && continue
        echo "not $wanted of $unit:"
        systemctl show "$unit"
        return 1
    done
}

# What the agent's own API says of its pods holds this.
agent_says() {
    for _ in $(seq 150); do
        curl -sSkf --max-time 10 https://127.0.0.1:10250/pods >"$work/pods" && grep -q "$1" "$work/pods" && return 0
        sleep 0.2
    done
    echo "not $1:"
    cat "$work/pods"
    systemctl status --no-pager hanok
    tail -n 40 "$work/agent.log"
    return 1
}
