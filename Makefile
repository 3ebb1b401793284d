# Every target is the same lines as CI runs. `make demo` and `make test` begin from a bare Debian with Rust and Go.
# Cargo is always asked for the whole workspace, so that every dependency has one set of features and is built once.
SHELL := /bin/bash
CARGO ?= cargo
LAB := target/debug/hanok-lab
# Which specs of Kubernetes' conformance suite are run, and how many at once.
FOCUS ?= \[sig-node\].*\[Conformance\]
SKIP ?= \[Serial\]|\[Slow\]|\[Disruptive\]
PROCS ?= 8
CONTROL_PLANE := etcd kube-apiserver kube-controller-manager kube-scheduler kubectl agnhost
SUITE := e2e.test ginkgo nonewprivs
PEER_NODE := kubelet containerd containerd-shim-runc-v2 ctr

.PHONY: build demo test lint unit stories test-v2 conformance oci-conformance bench-runtime golden cluster-up cluster-down cluster-status cluster-programs bench

# The release build of hanok, with the static hanok-shim, hanok-pause and hanok-oci beside it, in target/release.
build:
	e2e/install.sh build
	$(CARGO) build --locked --release --workspace --bin hanok
	runtime/build-static.sh target/release oci

# A pod by `hanok run`, without any cluster.
demo:
	deploy/demo.sh

# Everything that CI runs; ends with the counts of passed and failed tests.
test:
	e2e/test.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings
	$(CARGO) clippy --locked --workspace --test stories -- --deny warnings

unit:
	e2e/install.sh build test
	$(CARGO) test --locked --no-fail-fast --workspace

# The stories on a lab of their own; with KUBECONFIG set, those that need no lab, on that cluster.
# STORIES="oom kill" tells those whose names hold one of these words.
stories: build cluster-programs
	$(CARGO) test --locked --workspace --test stories -- $(STORIES)

# Kubernetes' own conformance suite on both nodes of a lab; verdicts in target/conformance. PEER=kubelet runs it on a
# kubelet node instead, and puts both nodes' verdicts side by side.
conformance: build cluster-programs
	e2e/install.sh conformance $(if $(filter kubelet,$(PEER)),peer)
	e2e/controlplane/build.sh target/bin $(SUITE) $(if $(filter kubelet,$(PEER)),$(PEER_NODE))
	$(LAB) conformance --focus '$(FOCUS)' --skip '$(SKIP)' --procs $(PROCS) $(if $(filter kubelet,$(PEER)),--peer)

# What a hanok node says of many pods (phases, reasons, messages, events) against what a kubelet says of them,
# e2e/golden/kubelet.txt; PEER=kubelet writes that anew first. CASES="probe image" takes those whose names hold one of these.
golden: build cluster-programs
ifeq ($(PEER),kubelet)
	e2e/install.sh peer
	e2e/controlplane/build.sh target/bin $(PEER_NODE)
	$(LAB) golden --peer $(CASES)
else
	$(LAB) golden $(CASES)
endif

# The root tests and the stories again, in machines with nothing but cgroup v2 (QEMU). TESTS and STORIES choose by words.
# WHAT=telling leaves out what has little to do with cgroups, and is what `make test` runs. Last come systemd, on v2 and v1, and
# the kernel's security modules.
test-v2: build cluster-programs
ifeq ($(WHAT),telling)
	e2e/v2/test.sh -chain:: -lease:: -masquerade:: -netns:: -pods:: -portmap::
	HANOK_MACHINE=1 HANOK_PATIENCE=10 $(CARGO) test --locked --workspace --test stories -- $$(grep -v '^#' e2e/v2/telling)
else
	e2e/v2/test.sh $(TESTS)
	HANOK_MACHINE=1 HANOK_PATIENCE=10 $(CARGO) test --locked --workspace --test stories -- $(STORIES)
endif
	e2e/v2/systemd.sh
	e2e/v2/systemd.sh hybrid
	e2e/v2/labels.sh

# The validation programs of OCI's runtime-tools against `hanok oci` and Debian's runc, side by side. PROGRAMS="kill state"
# runs only these.
oci-conformance: build
	e2e/install.sh oci
	e2e/ociconform/build.sh target/oci
	$(CARGO) build --locked --quiet --workspace --bin hanok-lab
	$(LAB) oci-conformance --programs target/oci --known e2e/ociconform/known-failures $(PROGRAMS)

# A control plane and two nodes in network namespaces, to play with; kubeconfigs in target/cluster.
cluster-up: build cluster-programs
	$(LAB) up

cluster-down:
	$(LAB) down

cluster-status:
	$(LAB) status

cluster-programs:
	e2e/install.sh test
	e2e/controlplane/build.sh target/bin $(CONTROL_PLANE)
	e2e/localapi/build.sh target/bin
	e2e/testapp/build.sh
	$(CARGO) build --locked --quiet --workspace --bin hanok-lab

# The figures, each beside what it is compared to; PEER=kubelet measures a kubelet node in the same run.
bench: build cluster-programs
ifeq ($(PEER),kubelet)
	e2e/install.sh peer
	e2e/controlplane/build.sh target/bin $(PEER_NODE)
	$(LAB) bench --peer
else
	$(LAB) bench
endif

# What a container costs: time, memory and output, beside runc, crun, conmon and the bare system calls; also in
# target/bench/runtime.tsv. PARTS="time limit log memory" are all there are; ROUNDS=30 is how often times are taken.
bench-runtime: build
	e2e/install.sh oci bench
	HANOK_PROGRAMS=$(CURDIR)/target/release $(CARGO) bench --locked --quiet --workspace --bench runtime -- \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(PARTS)
