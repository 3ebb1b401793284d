#!/bin/bash
# Installs the Debian packages that builds, demo, tests or the peer node need, and says nothing when all are there.
# Starts no service and replaces none: docker-registry and nginx, whose packages would start one, are only unpacked
# to target/bin; so are whole trees to directories below target: containerd, and the kernels of the machines with cgroup v2
# and v1, which would become this machine's.
#
#   install.sh build|demo|test|conformance|oci|bench|peer|v2|v1 ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=()
programs=()
# Directories, each named like its package.
trees=()
# A directory, and the packages of which the first that there is has its kernel.
kernels=()
for what in "$@"; do
    case $what in
    build) packages+=(gcc libc6-dev libseccomp-dev pkg-config) ;;
    demo) packages+=(busybox-static iproute2 nftables) ;;
    test)
        packages+=(busybox-static iproute2 nftables curl ca-certificates util-linux bsdutils conmon)
        packages+=(containernetworking-plugins)
        programs+=(usr/bin/docker-registry)
        trees+=(target/containerd)
        ;;
    conformance) packages+=(bash-static curl util-linux) programs+=(usr/sbin/nginx) ;;
    oci) packages+=(runc crun busybox-static util-linux) ;;
    bench) packages+=(conmon) ;;
    # Debian 12 has Linux 6.12, that of Debian 13, beside its own, which maps no ids of a tmpfs.
    v2)
        packages+=(qemu-system-x86 e2fsprogs binutils xz-utils busybox-static iproute2 nftables util-linux curl)
        trees+=(target/v2/apparmor target/v2/checkpolicy)
        kernels+=("target/v2/linux linux-image-6.12-cloud-amd64 linux-image-cloud-amd64")
        ;;
    # Later ones have no memory controller on v1.
    v1) kernels+=("target/v1/linux linux-image-cloud-amd64") ;;
    peer) packages+=(runc containernetworking-plugins iptables conntrack) ;;
    *)
        echo "install.sh: unknown purpose \"$what\"" >&2
        exit 2
        ;;
    esac
done

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
unpack=()
for program in "${programs[@]}"; do
    [ -x "/$program" ] || [ -x "target/bin/$(basename "$program")" ] || unpack+=("$program")
done
absent=()
for tree in "${trees[@]}"; do
    [ -d "$tree" ] || absent+=("$tree")
done
wanted=()
for kernel in "${kernels[@]}"; do
    compgen -G "${kernel%% *}/boot/vmlinuz-*" >/dev/null || wanted+=("$kernel")
done
[ $((${#missing[@]} + ${#unpack[@]} + ${#absent[@]} + ${#wanted[@]})) -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "install.sh: as root, install: ${missing[*]} ${unpack[*]##*/} ${absent[*]##*/} ${wanted[*]#* }" >&2
    exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }
export DEBIAN_FRONTEND=noninteractive
echo "installing ${missing[*]} ${unpack[*]##*/} ${absent[*]##*/} ${wanted[*]#* }" >&2
quietly apt-get update
if [ ${#missing[@]} -gt 0 ]; then
    quietly apt-get install --yes --no-install-recommends "${missing[@]}"
fi
for program in "${unpack[@]}"; do
    package=$(basename "$program")
    unpacked=$(mktemp -d)
    (cd "$unpacked" && quietly apt-get download "$package" && dpkg-deb --extract "$package"_*.deb .)
    mkdir -p target/bin
    mv "$unpacked/$program" target/bin/
    rm -rf "$unpacked"
done
# A package to a directory.
extract() {
    local unpacked
    unpacked=$(mktemp -d)
    (cd "$unpacked" && quietly apt-get download "$1" && dpkg-deb --extract "$1"_*.deb tree)
    mkdir -p "$(dirname "$2")"
    rm -rf "$2"
    mv "$unpacked/tree" "$2"
    rm -rf "$unpacked"
}
for tree in "${absent[@]}"; do
    extract "$(basename "$tree")" "$tree"
done
for kernel in "${wanted[@]}"; do
    read -r directory names <<<"$kernel"
    # The packages without a version only depend on the one with the kernel.
    image=$(for name in $names; do apt-cache depends "$name" 2>/dev/null || true; done |
        sed -nE 's/^ *Depends: (linux-image-[0-9].*)/\1/p' | sed -n 1p)
    extract "$image" "$directory"
    find "$directory/lib/modules" -name '*.ko.xz' -exec xz --decompress {} +
done
