#!/bin/bash
# Installs the Debian packages that builds, demo, tests or the peer node need, and says nothing when all are there.
# Starts no service and replaces none: docker-registry and nginx, whose packages would start one, are only unpacked
# to target/bin; so is the kernel of the machine with cgroup v2, which would become this machine's, to target/v2/linux.
#
#   install.sh build|demo|test|conformance|oci|bench|peer|v2 ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=()
programs=()
kernels=()
for what in "$@"; do
    case $what in
    build) packages+=(gcc libc6-dev libseccomp-dev pkg-config) ;;
    demo) packages+=(busybox-static iproute2 nftables) ;;
    test) packages+=(busybox-static iproute2 nftables curl ca-certificates util-linux conmon) programs+=(usr/bin/docker-registry) ;;
    conformance) packages+=(bash-static curl util-linux) programs+=(usr/sbin/nginx) ;;
    oci) packages+=(runc crun busybox-static util-linux) ;;
    bench) packages+=(conmon) ;;
    # Debian 12 has Linux 6.12, that of Debian 13, beside its own, which maps no ids of a tmpfs.
    v2)
        packages+=(qemu-system-x86 e2fsprogs binutils xz-utils busybox-static iproute2 nftables util-linux curl)
        kernels=(linux-image-6.12-cloud-amd64 linux-image-cloud-amd64)
        ;;
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
if compgen -G 'target/v2/linux/boot/vmlinuz-*' >/dev/null; then
    kernels=()
fi
[ ${#missing[@]} -gt 0 ] || [ ${#unpack[@]} -gt 0 ] || [ ${#kernels[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "install.sh: as root, install: ${missing[*]} ${unpack[*]##*/} ${kernels[*]}" >&2
    exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }
export DEBIAN_FRONTEND=noninteractive
echo "installing ${missing[*]} ${unpack[*]##*/} ${kernels[*]}" >&2
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
if [ ${#kernels[@]} -gt 0 ]; then
    # The packages without a version only depend on the one with the kernel.
    image=$(for kernel in "${kernels[@]}"; do apt-cache depends "$kernel" 2>/dev/null || true; done |
        sed -nE 's/^ *Depends: (linux-image-[0-9].*)/\1/p' | sed -n 1p)
    unpacked=$(mktemp -d)
    (cd "$unpacked" && quietly apt-get download "$image" && dpkg-deb --extract "$image"_*.deb kernel)
    find "$unpacked/kernel/lib/modules" -name '*.ko.xz' -exec xz --decompress {} +
    mkdir -p target/v2
    rm -rf target/v2/linux
    mv "$unpacked/kernel" target/v2/linux
    rm -rf "$unpacked"
fi
