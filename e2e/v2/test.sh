#!/bin/bash
# Runs the root tests of runtime and network in a machine with nothing but cgroup v2: QEMU without help of the
# hardware, Debian's cloud kernel, and a disk with the tests' programs and little else. It has no network, lives for
# minutes at most, and everything of it goes with its directory. Prints the tests' own results.
#
#   e2e/v2/test.sh [FILTER ...]     only tests whose names hold one of these words
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

# Seconds that the machine may live. It takes about four to boot, and its processor is some forty times slower.
readonly LIFE=900
readonly MEMORY=3072

e2e/install.sh build test v2
kernel=$(echo target/v2/kernel/boot/vmlinuz-*)
modules=$(echo target/v2/kernel/lib/modules/*)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

# --- the tests
${CARGO:-cargo} test --locked --workspace --no-run 2>"$work/built" || { cat "$work/built" >&2; exit 1; }
runtime/build-static.sh target/v2/programs
${CARGO:-cargo} build --locked --quiet --workspace --bin hanok
binaries=$(sed -nE 's/^ *Executable (unittests src\/lib.rs|tests\/(pod|root)\.rs) \((.*)\)$/\3/p' "$work/built" |
    grep -E '/(hanok_runtime|pod|root)-[0-9a-f]+$')
[ -n "$binaries" ] || { echo "no tests were built" >&2; exit 1; }

# --- the disk
mkdir -p "$root"/{bin,dev,etc,lib,lib64,proc,programs,root,run,sys,tests,tmp,usr,var}
for link in sbin usr/bin usr/sbin; do ln -s /bin "$root/$link"; done
for link in usr/lib usr/lib64; do ln -s "/${link#usr/}" "$root/$link"; done
cp /bin/busybox "$root/bin/"
busybox --list | while read -r name; do [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"; done
cp target/v2/programs/hanok-{shim,pause} "$root/programs/"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
: >"$root/etc/resolv.conf"
# A program with the libraries that it is linked with.
add() {
    local from=$1 to=$2 library
    rm -f "$to"
    cp -L "$from" "$to"
    ldd "$from" | sed -nE 's/^(.*=>)?[[:space:]]*(\/[^ ]+) \(0x.*/\2/p' | sort -u | while read -r library; do
        mkdir -p "$root/$(dirname "${library#/usr}")"
        cp -Lu "$library" "$root/${library#/usr}"
    done
}
# Not busybox's, which would take its own ip before this one.
add "$(command -v dash)" "$root/bin/sh"
for program in ip bridge nft umount; do add "$(command -v "$program")" "$root/bin/$program"; done
mkdir -p "$root/lib/cni"
for plugin in bridge host-local loopback portmap static tuning; do
    [ ! -x "/usr/lib/cni/$plugin" ] || cp "/usr/lib/cni/$plugin" "$root/lib/cni/"
done
for binary in $binaries; do
    name=$(basename "$binary")
    add "$binary" "$root/tests/$name"
    strip --strip-debug "$root/tests/$name"
    echo "$name" >>"$root/tests/plan"
done
printf '%s\n' "$@" >"$root/tests/filter"
add target/debug/hanok "$root/programs/hanok"
strip --strip-debug "$root/programs/hanok"
ln -s /programs/hanok "$root/bin/hanok"
cp "$here/run.sh" "$root/tests/run"
[ $# -gt 0 ] || echo run >>"$root/tests/plan"
mkdir -p "$root/lib/modules"
cp -r "$modules" "$root/lib/modules/"
busybox depmod -b "$root" "$(basename "$modules")"
cp "$here/machine.sh" "$root/init"
/sbin/mke2fs -q -t ext4 -O ^has_journal -d "$root" "$work/disk" 2G >/dev/null

# --- what finds the disk
mkdir -p "$work/first/bin" "$work/first/lib"
cp /bin/busybox "$work/first/bin/"
for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk; do
    cp "$(find "$modules" -name "$module.ko")" "$work/first/lib/"
done
cp "$here/first.sh" "$work/first/init"
(cd "$work/first" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"

# --- the machine
timeout --signal=KILL "$LIFE" qemu-system-x86_64 -accel tcg,thread=multi -cpu Nehalem -smp 2 -m "$MEMORY" \
    -nodefaults -no-user-config -nic none -display none -no-reboot -serial stdio \
    -kernel "$kernel" -initrd "$work/initramfs" \
    -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" \
    -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off" </dev/null |
    tr -d '\r' | tee "$work/output" || true
# Its last word; without it, it did not come to its end.
grep -qx 'v2: all passed' "$work/output" || { echo "the machine with cgroup v2 did not pass" >&2; exit 1; }
