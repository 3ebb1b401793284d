#!/bin/sh
# Does what a connection to the machine asks for by a word; what follows before "done" is the answer.
pods=/sys/fs/cgroup/kubepods
running() {
    pid=$(cat /run/agent.pid 2>/dev/null) && [ -d "/proc/$pid" ]
}
end() {
    if running; then
        kill "-$1" "$pid"
        while [ -d "/proc/$pid" ]; do usleep 20000; done
    fi
    rm -f /run/agent.pid
}
# Processes of pods, as id and start time.
processes() {
    find $pods -name cgroup.procs -exec cat {} + 2>/dev/null | while read -r pid; do
        sed -E "s/^.*\) //; s/^([^ ]+ ){19}([^ ]+).*/$pid \2/" "/proc/$pid/stat" 2>/dev/null
    done
}
# Whatever a node must not have once its last pod is gone.
left() {
    processes | sed 's/^/process /'
    find $pods -type d -name 'pod*' 2>/dev/null | sed 's/^/cgroup /'
    ip -o link show type veth | sed 's/^/link /'
    nft list ruleset | grep -E '10\.244\.[0-9.]+([, ]|$)' | sed 's/^/nft /'
    sed -nE 's/^--(state|run|netns|containers-log)-dir=//p' /etc/flags | while read -r dir; do
        cut -d ' ' -f 5 /proc/self/mountinfo | grep "^$dir/" | sed 's/^/mount /'
    done
    for dir in $(sed -nE 's/^--run-dir=(.*)/\1\/sandboxes \1\/cni\/results/p; s/^--state-dir=(.*)/\1\/pods/p
        s/^--(netns|containers-log)-dir=//p' /etc/flags); do
        find "$dir" -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/entry /'
    done
    find "$(sed -nE 's/^--run-dir=//p' /etc/flags)/ipam" -type f 2>/dev/null | grep -E '/[0-9.]+$' | sed 's/^/lease /'
}
read -r word
case $word in
start)
    setsid /agent </dev/null >/dev/null 2>&1 &
    echo $! >/run/agent.pid
    ;;
kill) end KILL ;;
stop) end TERM ;;
running) running && echo yes ;;
processes | left) "$word" ;;
*) echo "no such word: $word" ;;
esac
echo done
