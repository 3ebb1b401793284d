#!/bin/bash
# Builds localapi into DIR, only when something that decides its content has changed since. A second run takes no time.
#
#   build.sh DIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
export GOFLAGS=-buildvcs=false CGO_ENABLED=0

cd "$here"
sum=$({ cat go.mod go.sum ./*.go build.sh && go version; } | sha256sum)
[ ! -x "$out/localapi" ] || [ "$(cat "$out/.localapi.sum" 2>/dev/null)" != "$sum" ] || exit 0
echo "building localapi" >&2
go build -trimpath -ldflags "-s -w" -o "$out/localapi" .
printf '%s\n' "$sum" >"$out/.localapi.sum"
