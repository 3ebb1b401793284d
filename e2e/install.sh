#!/bin/bash
# Installs the Debian packages that builds, demo, tests or the peer node need, and says nothing when all are there.
# Starts no service and replaces none: docker-registry, whose package would start one, is only unpacked to target/bin.
#
#   install.sh build|demo|test|peer ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=()
registry=
for what in "$@"; do
    case $what in
    build) packages+=(gcc libc6-dev libseccomp-dev pkg-config) ;;
    demo) packages+=(busybox-static iproute2 nftables) ;;
    test) packages+=(busybox-static iproute2 nftables curl ca-certificates util-linux) registry=yes ;;
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
fetch_registry=
if [ -n "$registry" ] && [ ! -x /usr/bin/docker-registry ] && [ ! -x target/bin/docker-registry ]; then
    fetch_registry=yes
fi
[ ${#missing[@]} -gt 0 ] || [ -n "$fetch_registry" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "install.sh: as root, install: ${missing[*]} ${fetch_registry:+docker-registry}" >&2
    exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }
export DEBIAN_FRONTEND=noninteractive
echo "installing ${missing[*]} ${fetch_registry:+docker-registry}" >&2
quietly apt-get update
if [ ${#missing[@]} -gt 0 ]; then
    quietly apt-get install --yes --no-install-recommends "${missing[@]}"
fi
if [ -n "$fetch_registry" ]; then
    unpacked=$(mktemp -d)
    (cd "$unpacked" && quietly apt-get download docker-registry && dpkg-deb --extract docker-registry_*.deb .)
    mkdir -p target/bin
    mv "$unpacked/usr/bin/docker-registry" target/bin/
    rm -rf "$unpacked"
fi
