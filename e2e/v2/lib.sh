# Functions that make and run a machine with nothing but cgroup v2: QEMU without help of the hardware, Debian's cloud
# kernel, a disk with what it is to run and little else. Sourced by bash at the root of the workspace, with $work, an
# empty directory; what is in $root, below it, is on the machine's disk.
#
#   install_machine          the packages, and the kernel in target/v2/linux
#   new_root                 fills $root with busybox, ip, nft and the kernel's modules
#   add FROM TO              adds a program with the libraries that it is linked with
#   make_disk SIZE           makes $work/disk of $root
#   run_machine SECONDS [QEMU OPTION ...]
#                            runs it for at most so long; what it writes to its ttyS1 goes to standard output, and to
#                            $work/output
#   machine_command [QEMU OPTION ...]
#                            only sets $command, for those who watch over it themselves; after find_kernel
#
# Words in $kernel_words are given to the kernel, which is in $linux. Its first program is $root/init, with begin.sh at
# /begin. Its console, which the kernel writes to as well, is $work/console.
here=e2e/v2
root=$work/root
linux=target/v2/linux

# Seconds of silence after which a machine is taken for dead; a test may take one.
readonly SILENCE=150
readonly MEMORY=3072

install_machine() {
    e2e/install.sh v2
    find_kernel
}

find_kernel() {
    kernel=$(echo "$linux"/boot/vmlinuz-*)
    modules=$(echo "$linux"/lib/modules/*)
}

new_root() {
    local link name program
    mkdir -p "$root"/{bin,dev,etc,lib,lib64,proc,programs,root,run,sys,tests,tmp,usr,var}
    for link in sbin usr/bin usr/sbin; do ln -s /bin "$root/$link"; done
    for link in usr/lib usr/lib64; do ln -s "/${link#usr/}" "$root/$link"; done
    cp /bin/busybox "$root/bin/"
    busybox --list | while read -r name; do [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"; done
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
    : >"$root/etc/resolv.conf"
    # Not busybox's, which would take its own ip before this one.
    add "$(command -v dash)" "$root/bin/sh"
    for program in ip bridge nft umount nsenter setsid; do add "$(command -v "$program")" "$root/bin/$program"; done
    mkdir -p "$root/lib/modules"
    cp -r "$modules" "$root/lib/modules/"
    busybox depmod -b "$root" "$(basename "$modules")"
    cp "$here/begin.sh" "$root/begin"
}

add() {
    local from=$1 to=$2 library
    rm -f "$to"
    cp -L "$from" "$to"
    ldd "$from" 2>/dev/null | sed -nE 's/^(.*=>)?[[:space:]]*(\/[^ ]+) \(0x.*/\2/p' | sort -u | while read -r library; do
        mkdir -p "$root/$(dirname "${library#/usr}")"
        cp -Lu "$library" "$root/${library#/usr}"
    done
}

# The disk, and what finds it.
make_disk() {
    /sbin/mke2fs -q -t ext4 -O ^has_journal -d "$root" "$work/disk" "$1" >/dev/null
    rm -rf "$root"
    mkdir -p "$work/first/bin" "$work/first/lib"
    cp /bin/busybox "$work/first/bin/"
    # What of it an older kernel does not have built in.
    find "$modules" \( -path '*/drivers/virtio/virtio*.ko' -o -name virtio_blk.ko \) -exec cp {} "$work/first/lib/" \;
    cp "$here/first.sh" "$work/first/init"
    (cd "$work/first" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"
}

machine_command() {
    command=(qemu-system-x86_64 -accel tcg,thread=multi -cpu Nehalem -smp 2 -m "$MEMORY" -nodefaults -no-user-config
        -display none -no-reboot -serial "file:$work/console" -serial stdio -kernel "$kernel" -initrd "$work/initramfs"
        -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe"
        -append "console=ttyS0 loglevel=5 panic=-1 mitigations=off ${kernel_words-}" "$@")
}

# Fails when the machine does not turn itself off in time or is silent for too long, and shows its console then. A kernel
# that patches its own code may panic under QEMU's emulation, whatever runs there (an int3 that it does not know any
# more; see begin.sh): that alone is tried once more, with the same disk.
run_machine() {
    run_machine_once "$@" && return
    grep -q 'Oops: int3: ' "$work/console" || return 1
    echo "the emulated kernel panicked over its own patches; once more"
    run_machine_once "$@"
}

# What the disk is told is forgotten when it ends.
run_machine_once() {
    local life=$1 line ended=0 machine output
    shift
    : >"$work/console"
    : >"$work/output"
    machine_command -snapshot "$@"
    exec {output}< <(exec timeout --foreground --signal=KILL "$life" "${command[@]}" </dev/null 2>&1)
    machine=$!
    while true; do
        IFS= read -r -t "$SILENCE" -u "$output" line || { ended=$?; break; }
        line=${line%$'\r'}
        printf '%s\n' "$line"
        printf '%s\n' "$line" >>"$work/output"
    done
    if [ "$ended" -gt 128 ]; then
        echo "the machine has been silent for $SILENCE seconds"
        kill -TERM "$machine"
    fi
    exec {output}<&-
    if wait "$machine" && [ "$ended" -le 128 ] && grep -q 'reboot: Power down' "$work/console"; then
        return 0
    fi
    echo "the machine did not come to its end (it had $life seconds); its console:"
    tail -n 60 "$work/console"
    return 1
}
