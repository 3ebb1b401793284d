#!/bin/bash
# Runs what asks systemd for cgroups in a machine whose init it is: the driver's own test, manifests by `hanok run`,
# and the agent as a unit of deploy/.
# systemd is this machine's own, with its libraries; see lib.sh for the machine. Prints the tests' own results.
#
#   e2e/v2/systemd.sh [hybrid|legacy]     with cgroup v1 instead of v2, and the older kernel that has all of it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. e2e/v2/lib.sh

# Seconds that the machine may live; it takes some hundred, with v1 forty.
readonly LIFE=400
hanok=${HANOK:-target/release/hanok}

story=story
case ${1-} in
hybrid) story=story-v1 kernel_words=systemd.unified_cgroup_hierarchy=0 ;;
legacy) story=story-v1 kernel_words="systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1" ;;
esac
if [ $story = story-v1 ]; then
    linux=target/v1/linux
    e2e/install.sh v1
    if grep -qx '# CONFIG_MEMCG_V1 is not set' $linux/boot/config-*; then
        echo "neither kernel nor systemd of this Debian knows cgroup v1: nothing to tell"
        exit 0
    fi
fi
install_machine

new_root
if [ $story = story ]; then
    ${CARGO:-cargo} test --locked --workspace --lib --no-run 2>"$work/built" || { cat "$work/built" >&2; exit 1; }
    tests=$(sed -nE 's/^ *Executable unittests src\/lib.rs \((.*hanok_runtime-[0-9a-f]+)\)$/\1/p' "$work/built")
    [ -x "$tests" ] || { echo "no tests were built" >&2; exit 1; }
    add "$tests" "$root/tests/driver"
    strip --strip-debug "$root/tests/driver"
fi
mkdir -p "$root"/lib/systemd/system "$root/etc/systemd"
for program in systemd systemd-shutdown systemd-cgroups-agent; do
    add "/lib/systemd/$program" "$root/lib/systemd/$program"
done
for program in systemctl systemd-cgls dbus-daemon; do add "$(command -v "$program")" "$root/bin/$program"; done
add "$(command -v curl)" "$root/bin/curl"
# The system's bus, by which systemd is asked.
mkdir -p "$root/usr/share/dbus-1/system.d" "$root/etc/dbus-1/system.d"
ln -s /run "$root/var/run"
cp /usr/share/dbus-1/system.conf "$root/usr/share/dbus-1/"
cp /usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf "$root/usr/share/dbus-1/system.d/"
echo 'messagebus:x:100:100:::/bin/false' >>"$root/etc/passwd"
echo 'messagebus:x:100:' >>"$root/etc/group"
cp /lib/systemd/system/dbus.{service,socket} /lib/systemd/system/{sysinit,basic,sockets,shutdown}.target \
    "$root/lib/systemd/system/"
printf 'passwd: files\ngroup: files\n' >"$root/etc/nsswitch.conf"
cat >"$root/lib/systemd/system/default.target" <<'END'
[Unit]
Description=the story
Wants=story.service
END
cat >"$root/lib/systemd/system/story.service" <<'END'
[Unit]
DefaultDependencies=no
Wants=dbus.service
After=dbus.service
[Service]
ExecStart=/bin/sh /tests/story
KillMode=process
Delegate=yes
END
cat >"$root/init" <<'END'
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec /lib/systemd/systemd
END
chmod +x "$root/init"
cp "$(dirname "$hanok")"/hanok-{shim,pause} "$root/programs/"
add "$hanok" "$root/programs/hanok"
strip --strip-debug "$root/programs/hanok"
ln -s /programs/hanok "$root/bin/hanok"
# As an administrator installs them.
mkdir -p "$root/etc/hanok" "$root/etc/systemd/system/hanok.service.d"
cp deploy/hanok.service "$root/etc/systemd/system/"
cp deploy/standalone.conf "$root/etc/systemd/system/hanok.service.d/"
cp deploy/standalone.yaml "$root/etc/hanok/"
printf '[Service]\nStandardOutput=append:/tmp/story/agent.log\nStandardError=inherit\n' \
    >"$root/etc/systemd/system/hanok.service.d/log.conf"
cp e2e/v2/{pods,units}.sh "$root/tests/"
cp "e2e/v2/$story.sh" "$root/tests/story"
make_disk 2G

run_machine "$LIFE" -nic none
# Its last word; without it, it did not come to its end.
grep -qx 'systemd: all passed' "$work/output" || {
    echo "the machine with systemd did not pass; its console:"
    tail -n 40 "$work/console"
    exit 1
} >&2
