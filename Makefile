# Everything a newcomer, a developer and CI run. `make` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

# Programs that cargo installs are found even where no login shell has set the path.
export PATH := $(HOME)/.cargo/bin:$(PATH)

SUDO    := $(if $(filter 0,$(shell id -u)),,sudo)
HOST     = $(shell rustc -vV | sed -n 's/^host: //p')
MUSL     = $(HOST:-gnu=-musl)
RELEASE  = $(abspath $(or $(CARGO_TARGET_DIR),target)/$(HOST)/release)
AGENT    = $(RELEASE)/berth-agent
CTL      = $(RELEASE)/berthctl
RUSTJAIL = $(RELEASE)/rustjail
IMAGE   := $(abspath build/image)
# The same of Debian's general kernel, for tests of what the one for VMs has no driver for.
GENERIC := $(abspath build/image-generic)
# Programs that are measured are copied first, as the installed ones beside them are: what a linker writes lies in the page
# cache a page at a time, and is slower to start.
MEASURED := $(abspath build/bench)

# What the agent can be built with beside its defaults.
FEATURES := cdh,image-pull,initdata,policy,tracing

# What the tests, the benches and berthctl find the built parts by.
PARTS = BERTH_AGENT=$(AGENT) BERTH_CTL=$(CTL) BERTH_RUSTJAIL=$(RUSTJAIL) BERTH_IMAGE_DIR=$(IMAGE) BERTH_GENERIC_IMAGE_DIR=$(GENERIC)

VM_PACKAGES    := binutils busybox-static cpio kmod lz4 qemu-system-x86 xz-utils zstd
TEST_PACKAGES  := apparmor conmon containerd dbus-daemon iproute2 iptables perl-base podman procps prometheus python3 runc systemd uidmap
# File systems that storages are tested with, and the daemon that shares a directory with a VM.
STORE_PACKAGES := btrfs-progs cryptsetup-bin e2fsprogs erofs-utils fdisk qemu-system-common xfsprogs
BENCH_PACKAGES := crun iproute2 runc strace
VSOCK_DAEMON   := vhost-device-vsock@0.3.0

# What `make run` shows: that this is a container, and whose kernel it is on.
GREETING = echo "Hello from inside the guest."; . /etc/os-release; \
           echo "kernel   $$(uname -srm)"; echo "system   $$PRETTY_NAME"; \
           echo "user     $$(id)"; echo "process  $$$$ of $$(hostname)"; \
           echo "memory   $$(free -m | awk "NR == 2 { print \$$2 }") MiB"

# Installs the Debian packages of $(1) that are missing, if any.
define install
	@missing=; for package in $(1); do \
	  dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || missing+=" $$package"; \
	done; \
	[ -z "$$missing" ] || { $(SUDO) apt-get -qq update; \
	  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing; }
endef

.PHONY: help
help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what building and booting need (Debian packages, the vsock daemon)
	$(call install,$(VM_PACKAGES) $(TEST_PACKAGES) $(STORE_PACKAGES))
	@command -v vhost-device-vsock >/dev/null || (cd / && cargo install --locked $(VSOCK_DAEMON))

.PHONY: build
build: $(AGENT) $(CTL) $(RUSTJAIL) ## compile the agent, berthctl and rustjail for release

# Only cargo knows whether they are out of date. Where it leaves a file as it is, nothing after it is remade.
$(CTL): FORCE
	@cargo build --release --package berthctl --bin berthctl $(if $(wildcard $@),--quiet)

# glibc's start executes a hundred CPUID instructions, each of which leaves a virtual machine, in each of the agent's roles
# and anew for every container of the command's. So both are for musl where rustup is there to give us that, else like the rest.
$(AGENT) $(RUSTJAIL) &: $(CTL) FORCE
	@target=$(HOST); if rustup --quiet target add $(MUSL) 2>/dev/null; then target=$(MUSL); fi; \
	cargo build --release --target $$target $(foreach part,berth-agent rustjail,--package $(part) --bin $(part)) $(if $(wildcard $(AGENT)),--quiet); \
	[ $$target = $(HOST) ] || ln -f $(RELEASE)/../../$$target/release/{berth-agent,rustjail} $(RELEASE)

FORCE:

.PHONY: image
image: $(IMAGE)/initrd.cpio $(IMAGE)/bundle/busybox/config.json ## make the guest's kernel, initrd and a busybox bundle

$(IMAGE)/vmlinux: image/kernel.sh image/modules.list
	@image/kernel.sh $(IMAGE)

$(IMAGE)/initrd.cpio: image/initrd.sh $(IMAGE)/vmlinux $(AGENT)
	@image/initrd.sh $(IMAGE) $(AGENT)

$(GENERIC)/vmlinux: image/kernel.sh image/modules.list
	@KERNEL_PACKAGE=linux-image-$$(dpkg --print-architecture) image/kernel.sh $(GENERIC)

$(GENERIC)/initrd.cpio: image/initrd.sh $(GENERIC)/vmlinux $(AGENT)
	@image/initrd.sh $(GENERIC) $(AGENT)

$(IMAGE)/bundle/busybox/config.json: image/bundle.sh image/config.json
	@image/bundle.sh $(IMAGE)

.PHONY: run
run: setup build image ## boot a VM and run one container in it
	@$(PARTS) $(CTL) run --bundle $(IMAGE)/bundle/busybox -- /bin/sh -c '$(GREETING)'

.PHONY: test
test: setup build image $(GENERIC)/initrd.cpio ## run every test, those in real VMs too
	$(call install,$(TEST_PACKAGES) $(STORE_PACKAGES))
	@$(PARTS) cargo test --workspace --no-fail-fast
	@cargo test --package berth-agent --features cdh,initdata,policy --lib --test policy --test trust --no-fail-fast
	@cargo test --package berth-agent --features image-pull,tracing --lib --test image --test tracing --no-fail-fast

SOAK_CONTAINERS ?= 10000
.PHONY: soak
soak: setup build image ## run 10,000 containers and 50,000 execs, and a guest out of memory 50 times
	@$(PARTS) SOAK_CONTAINERS=$(SOAK_CONTAINERS) SOAK_OOM=50 cargo test --test soak --test vm_oom -- --nocapture

MUTATIONS ?= 1000000
.PHONY: mutations
mutations: setup build ## make MUTATIONS (1000000) nearly right requests of every method
	$(call install,$(TEST_PACKAGES))
	@$(PARTS) MUTATIONS=$(MUTATIONS) cargo test --profile bench --package berth --test mutations -- --nocapture

.PHONY: bench
bench: setup build image ## measure beside crun and runc
	$(call install,$(BENCH_PACKAGES))
	@target=$(HOST); if rustup --quiet target add $(MUSL) 2>/dev/null; then target=$(MUSL); fi; \
	cargo build --quiet --release --target $$target --package berth --bin berth-floor; \
	install -D -t $(MEASURED) $(AGENT) $(RUSTJAIL) $(RELEASE)/../../$$target/release/berth-floor
	@$(PARTS) BERTH_AGENT=$(MEASURED)/berth-agent BERTH_RUSTJAIL=$(MEASURED)/rustjail BERTH_FLOOR=$(MEASURED)/berth-floor \
	cargo bench --bench report

.PHONY: lint
lint: ## check format, clippy, licences, scripts and where unsafe code is
	@cargo fmt --all --check
	@cargo clippy --quiet --workspace --all-targets -- -D warnings
	@cargo clippy --quiet --package berth-agent --all-targets --features $(FEATURES) -- -D warnings
	@command -v cargo-deny >/dev/null || (cd / && cargo install --locked cargo-deny)
	@cargo deny --log-level error check --hide-inclusion-graph bans licenses sources
	@! git grep --untracked -nE '\bunsafe +(\{|fn|impl|extern|trait)|(allow|expect)\([^)]*unsafe_code' -- '*.rs' ':!rustjail/src/sys/' \
	  || { echo 'lint: unsafe code belongs in rustjail/src/sys/' >&2; exit 1; }
	@if command -v shellcheck >/dev/null; then shellcheck image/*.sh .ci/run; fi

RACES ?= 100000
.PHONY: races
races: ## try the races of the security tests RACES (100000) times each
	@RUSTJAIL_TRIES=$(RACES) cargo test --release --package rustjail --lib -- child::races --nocapture --test-threads 1
	@RUSTJAIL_TRIES=$(RACES) cargo test --release --package rustjail --test races -- --nocapture --test-threads 1

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZ_SECONDS (60) each
	@command -v cargo-fuzz >/dev/null || (cd / && cargo install --locked cargo-fuzz)
	@for target in $$(cargo fuzz list); do \
	  mkdir -p fuzz/corpus/$$target; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run "$$target" fuzz/corpus/$$target $$(ls -d fuzz/seeds/$$target 2>/dev/null) -- \
	    -max_total_time=$(FUZZ_SECONDS) $$(ls $(CURDIR)/fuzz/$$target.dict 2>/dev/null | sed 's/^/-dict=/'); \
	done

.PHONY: clean
clean: ## remove everything made, but for what setup installed
	@cargo clean --quiet
	@rm -rf build
