#!/bin/sh
# The machine's only service: runs the tests of /tests/plan, each program in a cgroup of its own, and turns off.
. /begin
# Seconds that one program of tests may take.
LIMIT=600

failed=
for program in $(cat /tests/plan); do
    make_service "$program"
    echo "v2: $program"
    # Of the library's own tests those of cgroups, systemd has a machine of its own; of the others not those that measure time.
    case $program in
    hanok_runtime-*) only='--test-threads=4 --skip cgroup::systemd cgroup::' ;;
    run) only= ;;
    *) only="--test-threads=4 --skip within_milliseconds $(cat /tests/filter)" ;;
    esac
    # The words are arguments, each its own.
    # shellcheck disable=SC2086
    (
        echo 0 >"/sys/fs/cgroup/$program/leaf/cgroup.procs"
        exec timeout -s KILL "$LIMIT" "/tests/$program" $only
    ) </dev/null || failed="$failed $program"
    echo "v2: $(cut -d. -f1 /proc/uptime) s"
done
if [ -z "$failed" ]; then
    echo "v2: all passed"
else
    echo "v2: failed:$failed"
fi
sync
poweroff -f
