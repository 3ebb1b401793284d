#!/bin/bash
# Builds the named programs of this Go module (and of ../peer) into DIR, each only when something that decides
# its content has changed since: the module's files, this script or the Go version. A second run takes no time.
#
#   build.sh DIR PROGRAM...
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)

export GOFLAGS=-buildvcs=false CGO_ENABLED=0
kubernetes=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" { print $3 } $1 == "k8s.io/kubernetes" { print $2 }' "$here/go.mod" | head -n 1)
minor=${kubernetes#v1.}
minor=${minor%%.*}
# A server without these calls itself v0.0.0, and clients refuse it.
version=k8s.io/component-base/version
stamp="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=$minor"

# Prints: module directory, linker flags, build tags, package.
recipe() {
    case $1 in
    etcd) printf '%s|%s|%s|%s' "$here" "-s -w" "" go.etcd.io/etcd/server/v3 ;;
    agnhost | nonewprivs) printf '%s|%s|%s|%s' "$here" "$stamp" "" "k8s.io/kubernetes/test/images/$1" ;;
    ginkgo) printf '%s|%s|%s|%s' "$here" "-s -w" "" github.com/onsi/ginkgo/v2/ginkgo ;;
    containerd | containerd-shim-runc-v2 | ctr)
        printf '%s|%s|%s|%s' "$here/../peer" "-s -w" no_btrfs,no_zfs,no_devmapper \
            "github.com/containerd/containerd/v2/cmd/$1"
        ;;
    kube* | e2e.test) printf '%s|%s|%s|%s' "$here" "$stamp" "" "k8s.io/kubernetes/cmd/$1" ;;
    *)
        echo "build.sh: unknown program \"$1\"" >&2
        exit 2
        ;;
    esac
}

for program in "$@"; do
    IFS='|' read -r module flags tags package < <(recipe "$program" && echo)
    sum=$({ cat "$module/go.mod" "$module/go.sum" "${BASH_SOURCE[0]}" && cd "$module" && go version; } | sha256sum)
    record=$out/.$program.sum
    if [ -x "$out/$program" ] && [ "$(cat "$record" 2>/dev/null)" = "$sum" ]; then
        continue
    fi
    echo "building $program" >&2
    began=$SECONDS
    if [ "$program" = e2e.test ]; then
        (cd "$module" && go test -c -trimpath -ldflags "$flags" -o "$out/$program" k8s.io/kubernetes/test/e2e)
    else
        (cd "$module" && go build -trimpath -tags "$tags" -ldflags "$flags" -o "$out/$program" "$package")
    fi
    printf '%s\n' "$sum" >"$record"
    echo "built $program in $((SECONDS - began)) s" >&2
done
