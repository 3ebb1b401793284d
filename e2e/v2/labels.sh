#!/bin/bash
# Runs pods and bundles under the kernel's security modules, in two machines with one disk: AppArmor, which Debian's
# kernel takes by itself, and SELinux with a policy of a page (labels.te). Prints the tests' own results.
#
#   e2e/v2/labels.sh [apparmor] [selinux]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=e2e/v2/lib.sh
. e2e/v2/lib.sh

# Seconds that a machine may live; it takes some thirty.
readonly LIFE=400
hanok=${HANOK:-target/release/hanok}

install_machine

new_root
add "$hanok" "$root/programs/hanok"
strip --strip-debug "$root/programs/hanok"
cp "$(dirname "$hanok")"/hanok-{shim,pause} "$root/programs/"
ln -s /programs/hanok "$root/bin/hanok"
add target/v2/apparmor/sbin/apparmor_parser "$root/bin/apparmor_parser"
mkdir -p "$root/etc/apparmor.d" "$root/usr/share"
cp -r target/v2/apparmor/usr/share/apparmor-features "$root/usr/share/"
cp -r target/v2/apparmor/etc/apparmor "$root/etc/"
cp -r target/v2/apparmor/etc/apparmor.d/abi "$root/etc/apparmor.d/"
# What labels.te leaves to be counted: every category, and the same context for whatever the kernel has at first.
categories=$(seq -f 'category c%g;' 0 1023)
contexts=$(sed -nE 's/^(sid [a-z_]+)$/\1 system_u:system_r:base_t:s0 - s0:c0.c1023/p' "$here/labels.te")
awk -v categories="$categories" -v contexts="$contexts" \
    '$0 == "CATEGORIES" { print categories; next } $0 == "CONTEXTS" { print contexts; next } { print }' \
    "$here/labels.te" >"$work/policy.conf"
target/v2/checkpolicy/usr/bin/checkpolicy -M -U allow -c 33 -o "$root/etc/policy" "$work/policy.conf" >/dev/null
cp "$here"/pods.sh "$here"/{apparmor,selinux}.sh "$root/tests/"
cp "$here/labelsinit.sh" "$root/init"
make_disk 1G

[ $# -gt 0 ] || set -- apparmor selinux
for module in "$@"; do
    kernel_words="security=$module"
    run_machine "$LIFE" -nic none
    # Its last word; without it, it did not come to its end.
    grep -qx "$module: all passed" "$work/output" || { echo "the machine with $module did not pass" >&2; exit 1; }
done
