#!/bin/sh
# Runs in the machine with cgroup v2: manifests by `hanok run`, with an image that is made here. Prints its results as
# the other tests do.
set -u
work=/tmp/run
where="--state-dir=$work/state --run-dir=/run/run-story --bridge-name=story0 --pod-cidr=10.85.0.0/24"
passed=0
failed=0

# One law: a name and a function.
tell() {
    if "$2" >"$work/why" 2>&1; then
        echo "test run::$1 ... ok"
        passed=$((passed + 1))
    else
        echo "test run::$1 ... FAILED"
        cat "$work/why"
        failed=$((failed + 1))
    fi
}

# An archive as `docker save` makes it.
make_image() {
    mkdir -p "$work/layer/bin" "$work/layer/tmp" "$work/image"
    cp /bin/busybox "$work/layer/bin/"
    for name in sh cat tail sleep echo; do ln -s busybox "$work/layer/bin/$name"; done
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

# Runs a pod of one container: its name, its resources as JSON, its script.
run() {
    cat >"$work/$1.yaml" <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: example.test/busybox:1
    imagePullPolicy: IfNotPresent
    resources: $2
    command: [sh, -c, "$3"]
END
    # shellcheck disable=SC2086 # the places are words
    timeout -s TERM 120 hanok run $where "$work/$1.yaml" >"$work/$1.out" 2>&1
}

limits_are_in_force() {
    show='cd /sys/fs/cgroup; for f in memory.max memory.swap.max memory.oom.group cpu.max cpu.weight; do echo $f=$(cat $f); done'
    run limits '{limits: {cpu: 500m, memory: 64Mi}}' "$show" || { cat "$work/limits.out"; return 1; }
    for line in memory.max=67108864 memory.oom.group=1 'cpu.max=50000 100000' cpu.weight=59; do
        grep -q "$line" "$work/limits.out" || { echo "no $line:"; cat "$work/limits.out"; return 1; }
    done
    # Where there is no swap there is no such file.
    ! grep -q 'memory.swap.max=[^0]' "$work/limits.out"
}

whole_container_dies_of_want_of_memory() {
    if run eats '{limits: {memory: 32Mi}}' 'tail /dev/zero; echo survived'; then
        echo "it succeeded:"
        cat "$work/eats.out"
        return 1
    fi
    grep -q OOMKilled "$work/eats.out" && ! grep -q survived "$work/eats.out" || { cat "$work/eats.out"; return 1; }
}

nothing_is_left() {
    left=$(find /sys/fs/cgroup -mindepth 2 -type d -name 'pod*'; ip -o link | grep story0; ls /run/netns)
    [ -z "$left" ] || { echo "$left"; return 1; }
}

mkdir -p "$work"
tell image_is_imported make_image
tell limits_are_in_force limits_are_in_force
tell whole_container_dies_of_want_of_memory whole_container_dies_of_want_of_memory
tell nothing_is_left nothing_is_left
word=ok
[ "$failed" = 0 ] || word=FAILED
echo
echo "test result: $word. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
[ "$failed" = 0 ]
