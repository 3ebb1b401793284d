# Sourced by what runs pods by `hanok run` in a machine: an image that is made there, manifests, and results printed as
# the other tests print theirs. Wants $suite, the word before the laws' names, $work, a directory, and $where, the places
# that hanok is told.
passed=0
failed=0
mkdir -p "$work"

# One law, which is the name of its function.
tell() {
    if "$1" >"$work/why" 2>&1; then
        echo "test $suite::$1 ... ok ($(cut -d. -f1 /proc/uptime) s)"
        passed=$((passed + 1))
    else
        echo "test $suite::$1 ... FAILED"
        cat "$work/why"
        failed=$((failed + 1))
    fi
}

# The counts; whether nothing has failed.
result() {
    word=ok
    [ "$failed" = 0 ] || word=FAILED
    echo
    echo "test result: $word. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
    [ "$failed" = 0 ]
}

# An archive as `docker save` makes it.
image_is_imported() {
    mkdir -p "$work/layer/bin" "$work/layer/tmp" "$work/layer/mnt" "$work/layer/secret" "$work/image"
    cp /bin/busybox "$work/layer/bin/"
    for name in sh cat tail sleep echo true mount grep; do ln -s busybox "$work/layer/bin/$name"; done
    tar -C "$work/layer" -cf "$work/image/layer.tar" .
    digest=$(sha256sum "$work/image/layer.tar" | cut -d ' ' -f 1)
    cat >"$work/image/config.json" <<END
{"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
    cat >"$work/image/manifest.json" <<END
[{"Config": "config.json", "RepoTags": ["example.test/busybox:1"], "Layers": ["layer.tar"]}]
END
    tar -C "$work/image" -cf "$work/image.tar" manifest.json config.json layer.tar
    hanok image --state-dir="$work/state" import "$work/image.tar"
}

# A pod of one container: its name, its resources as JSON, its script.
write_pod() {
    cat >"$work/$1.yaml" <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: example.test/busybox:1
    imagePullPolicy: IfNotPresent
    resources: $2
    command: [sh, -c, "$3"]
END
}

# Runs such a pod to its end.
run() {
    write_pod "$@"
    # shellcheck disable=SC2086 # the places are words
    timeout -s TERM 120 hanok run $where "$work/$1.yaml" >"$work/$1.out" 2>&1
}

whole_container_dies_of_want_of_memory() {
    if run eats '{limits: {memory: 32Mi}}' 'tail /dev/zero; echo survived'; then
        echo "it succeeded:"
        cat "$work/eats.out"
        return 1
    fi
    grep -q OOMKilled "$work/eats.out" && ! grep -q survived "$work/eats.out" || { cat "$work/eats.out"; return 1; }
}
