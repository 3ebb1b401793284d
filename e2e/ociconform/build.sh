#!/bin/bash
# Builds the OCI validation programs of opencontainers/runtime-tools into DIR, beside the root filesystem that they
# unpack; only when something that decides their content has changed since. A second run takes no time.
#
#   build.sh DIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
export GOFLAGS=-buildvcs=false CGO_ENABLED=0
tools=github.com/opencontainers/runtime-tools

sum=$({ cat "$here/go.mod" "$here/go.sum" "${BASH_SOURCE[0]}" && cd "$here" && go version; } | sha256sum)
[ "$(cat "$out/.sum" 2>/dev/null)" != "$sum" ] || exit 0
echo "building the OCI validation programs" >&2
began=$SECONDS
cd "$here"
go build -o "$out/runtimetest" "$tools/cmd/runtimetest"
names=$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' "$tools/validation/...")
for package in $names; do
    go build -o "$out/t-${package##*/}" "$package"
done
install -m 644 "$(go list -m -f '{{.Dir}}' "$tools")/rootfs-amd64.tar.gz" "$out/"
printf '%s\n' "$sum" >"$out/.sum"
echo "built them in $((SECONDS - began)) s" >&2
