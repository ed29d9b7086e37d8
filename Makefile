# The entry points. `make` lists them. What is missing is installed where that is possible:
# packages with apt-get (as root or through sudo), Rust's components with rustup.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
QUAYFS := $(TARGET)/release/quayfs
QUAYFS_BENCH := $(TARGET)/release/quayfs-bench
PREFIX ?= /usr/local
# What reports of benchmarks call the program.
COMMIT = $(shell git describe --always --dirty 2>/dev/null)

PACKAGES := fuse3 libpmem-dev pkg-config gcc libc6-dev make ca-certificates \
	python3 git e2fsprogs xfsprogs acl xz-utils groff-base systemd udev

.PHONY: help deps build mount umount demo pictures test test-workspace test-rings test-loom conformance xfstests apps kills outlive cuts remote crash threads mutants lint deny docs book \
	package benches bench lab \
	fuzz miri sanitize man install install-data uninstall deb try-deb rpm try-rpm

help:
	@echo 'make mount     build, make the volume demo/volume and mount it on demo/mnt'
	@echo 'make umount    unmount demo/mnt'
	@echo 'make demo      mount, and time programs that wait for the disk, on it and beside it'
	@echo 'make test      run every test, public suites too; they mount for real, so they need /dev/fuse'
	@echo '               (QUAYFS_SKIP_FUSE=1 leaves those out, QUAYFS_SKIP_URING=1 those that need'
	@echo '               root and Linux 6.14 for FUSE over io_uring, QUAYFS_SKIP_ROOT=1 those that need root)'
	@echo 'make conformance   the public suites alone, in every way to mount (CELLS=pairs SEEDS=1; as root)'
	@echo 'make xfstests  run XFSTESTS=DIR, where xfstests was built (TESTS=quick OPTIONS=; as root)'
	@echo 'make apps      run real programs on real mounts, with deaths in between (long: tests/apps)'
	@echo 'make kills     kill the daemon under five programs at random moments (ROUNDS=1000 SEED=1)'
	@echo 'make outlive   kill daemons whose mounts go on, under programs that must not notice (KILLS=1000 SEED=1;'
	@echo '               NEXT=PROGRAM: replace them instead, by that program and back; PAUSES=50: how long clients wait;'
	@echo '               OUTLIVE=--changes: resize, migrate and set quotas meanwhile)'
	@echo 'make cuts      cut the power of a simulated disk under them (ROUNDS=1000 SEED=1; as root)'
	@echo 'make remote    put the data of volumes on Ceph and NBD, and stop, kill, fill and fence these (STALL=60; as root)'
	@echo 'make crash     search for crashes that lose something (SECONDS=600 SEED=1 SHARE=1/1);'
	@echo 'make threads   the same, of several threads in interleavings that can be had again;'
	@echo 'make mutants   forget each flush, fence and check in turn, which has to be noticed'
	@echo 'make bench     build quayfs-bench, which measures; DIRS="ext4=/mnt/ext4 q=/mnt/q" runs WORKLOADS there'
	@echo 'make lab       test real DAX in an emulated machine with an NVDIMM'
	@echo 'make fuzz      hostile images and callers, SECONDS for each target; make miri and'
	@echo '               make sanitize look for undefined behaviour; all need a nightly toolchain'
	@echo 'make lint      formatting and clippy;  make docs, make benches: build those'
	@echo 'make book      all documents as a book: target/book/index.html;  make pictures makes its pictures anew, as root'
	@echo 'make deny      licences, versions, sources of what is linked, and advisories where they can be had'
	@echo 'make package   pack the crates that stand alone as for a registry, and build each from that'
	@echo 'make install   install below PREFIX ($(PREFIX)), and the helpers of mount(8)'
	@echo 'make man       manual pages and completions of shells alone: target/release/pages'
	@echo 'make deb       a Debian package in target/debian;  make try-deb installs it in a copy of this system'
	@echo 'make rpm       the same for rpm, in target/rpm;  make try-rpm installs it in a directory, and compares the two'

deps:
	@scripts/packages $(PACKAGES)
	@command -v $(CARGO) >/dev/null || \
		{ echo 'No cargo: install Rust 1.89 or later from https://rustup.rs' >&2; exit 1; }

build: deps
	$(CARGO) build --release --bin quayfs

mount: build
	@[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
	@scripts/demo mount $(QUAYFS)

umount:
	@scripts/demo umount $(QUAYFS)

demo: build
	@[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
	@scripts/demo time $(QUAYFS)

test: test-workspace test-rings test-loom conformance

# Twice as many tests at a time as there are processors: those with mounts mostly wait.
test-workspace: deps
	@[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
	RUST_TEST_THREADS=$$((2 * $$(nproc))) $(CARGO) test --workspace

# The tests with real mounts once more, over FUSE over io_uring, which root can switch on. With rings a mount ends with
# its daemon, so tests of what outlives one are left out.
test-rings: deps
	scripts/rings $(CARGO) test --test mount -- daemon:: umount:: calls:: acl:: idmap:: scrub_mount:: exchange:: \
		--skip exchange::atomic::what_a_dead_daemon_kept --skip exchange::atomic::a_commit_of_nothing \
		--skip exchange::ranges::daemons_die_meanwhile
	scripts/rings $(CARGO) test --test kill --test loops

# Every interleaving of the lock-free parts; another build of them, hence another directory.
test-loom: deps
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR='$(TARGET)/loom' \
		$(CARGO) test -p quayfs-journal -p quayfs-rangelock --lib
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR='$(TARGET)/loom' \
		$(CARGO) test -p quayfs-pmem --lib loom_tests

# pjdfstest and fsx on real mounts: docs/conformance.md. The suites are built into the target directory
# once. PROFILE=dev has every assertion and overflow check, and is the daemon that the tests have built
# already: as a part of one of them, since alone it would be built anew, with other features of crates.
# CELLS=all takes every combination of mount options; SEED, SEEDS and OPS (for each seed and variant)
# are those of fsx.
CELLS ?= pairs
SEEDS ?= 1
OPS ?= 100000
SUITES ?= pjdfstest,fsx
PROFILE ?= dev
DAEMON.dev = $(CARGO) test --quiet --workspace --no-run --test transport
DAEMON.release = $(CARGO) build --release --bin quayfs
TOOLS := $(TARGET)/conformance
INSTALL_TOOL = $(CARGO) install --quiet --locked --root '$(TOOLS)' --target-dir '$(TOOLS)/build'
conformance: deps
	@scripts/packages libacl1-dev python3 passwd mount
	@[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
	$(INSTALL_TOOL) --debug pjdfstest@0.2.2
	$(INSTALL_TOOL) fsx@0.3.2
	$(DAEMON.$(PROFILE))
	python3 tests/conformance --quayfs '$(TARGET)/$(PROFILE:dev=debug)/quayfs' --tools '$(TOOLS)' \
		--suites $(SUITES) --cells $(CELLS) --seed $(SEED) --seeds $(SEEDS) --ops $(OPS)

# xfstests, which is built elsewhere, in the directory XFSTESTS, on mounts with OPTIONS.
OPTIONS ?=
TESTS ?= quick
xfstests: deps
	@[ -n '$(XFSTESTS)' ] || { echo 'XFSTESTS=DIR: where xfstests was built (docs/conformance.md)' >&2; exit 1; }
	$(DAEMON.release)
	python3 tests/conformance/xfstests '$(XFSTESTS)' --quayfs '$(TARGET)/release/quayfs' --options '$(OPTIONS)' $(TESTS)

# Crashes on purpose: all programs of one and two steps, then random ones until SECONDS have passed. SHARE=2/3: of
# the former the second third.
SECONDS ?= 600
SEED ?= 1
SHARE ?= 1/1
# Threads in an interleaving that belongs to their seed. The daemon is never built with it.
SCHED := quayfs-sync/sched,quayfs-oracle/sched
CRASH := $(CARGO) run --release -p quayfs-oracle --features sched --bin crash --
crash: deps
	$(CRASH) --seconds $(SECONDS) --seed $(SEED) --share $(SHARE)

# The scheduler that repeats an interleaving, what it finds, and a search with it.
threads: deps
	$(CARGO) test --release -p quayfs-sync -p quayfs-oracle --features $(SCHED) --test sched
	$(CRASH) --threads --seconds $(SECONDS) --seed $(SEED)

# Every flush and fence forgotten in turn, which becomes a table of docs/internals/mutants.md, then every check: does anybody notice?
mutants: deps
	$(CRASH) --mutants --seconds $(SECONDS) --page docs/internals/mutants.md
	scripts/guards

# By hand: real programs at full size. SOURCE is a tree or an archive of sources to copy.
SOURCE ?= $(HOME)/.cargo/registry/src
apps: build
	@scripts/packages fio git sqlite3 python3 attr acl rsync debootstrap postgresql rocksdb-tools
	@command -v go >/dev/null || scripts/packages golang-go
	@command -v npm >/dev/null || scripts/packages npm
	@set -e; export QUAYFS='$(QUAYFS)'; cd tests/apps; ./messages.sh; ./recovery.sh; ./full.sh; \
		./tree.sh '$(SOURCE)'; ./develop.sh; ./sqlite.sh; ./many.sh; ./large.sh; ./fio.sh; ./postgres.sh; \
		./rocksdb.sh; ./npm.sh; ./go.sh; ./rsync.sh; ./debootstrap.sh
	QUAYFS_KILL_ROUNDS=100 $(CARGO) test --release --test kill -- --nocapture

# The daemon is killed at random moments under five programs; APPS and LIFE are what a failure says.
# Half of the volumes are mounted over rings.
ROUNDS ?= 1000
APPS ?=
LIFE ?=
kills: build
	$(if $(filter 1,$(QUAYFS_SKIP_URING)),,scripts/rings) nice -n 5 python3 tests/apps/kills --quayfs '$(QUAYFS)' --rounds $(ROUNDS) --seed $(SEED) \
		$(if $(APPS),--apps $(APPS)) $(if $(LIFE),--life $(LIFE))

# Daemons of mounts are killed under programs that must not notice. PAUSES=50: how long clients wait, after so many kills
# of a mount with much in it. fsx is that of `make conformance`, where it has been built.
KILLS ?= 1000
JOBS ?= 1
PAUSES ?=
OUTLIVE ?=
outlive: build
	nice -n 5 python3 tests/apps/outlive --quayfs '$(QUAYFS)' --kills $(or $(PAUSES),$(KILLS)) --seed $(SEED) --jobs $(JOBS) \
		--fsx '$(TOOLS)/bin/fsx' $(if $(PAUSES),--pauses) $(if $(NEXT),--next '$(NEXT)') $(OUTLIVE)

# The same programs on a simulated disk whose power is cut.
cuts: build
	$(CARGO) build --release -p quayfs-disk
	$(if $(filter 1,$(QUAYFS_SKIP_URING)),,scripts/rings) nice -n 5 python3 tests/apps/cuts --quayfs '$(QUAYFS)' \
		--disk '$(TARGET)/release/quayfs-disk' --rounds $(ROUNDS) --seed $(SEED) \
		$(if $(APPS),--apps $(APPS)) $(if $(LIFE),--life $(LIFE))

# Data of volumes on Ceph and NBD, by FUSE; the servers are made for the run.
STALL ?= 60
remote: build
	@scripts/packages fio python3 fuse3 nbdkit libnbd-bin ceph-mon ceph-osd ceph-common rbd-fuse
	nice -n 5 python3 tests/apps/remote --quayfs '$(QUAYFS)' --stall $(STALL)

lint: deps
	$(CARGO) fmt --all --check
	rustfmt --edition 2024 --config-path rustfmt.toml --check lab/guest/records.rs
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p quayfs-sync -p quayfs-oracle --features $(SCHED) --all-targets -- -D warnings

# What is linked, by deny.toml. Without optimisation the tool is built in half the time.
DENY := $(or $(shell command -v cargo-deny),$(TOOLS)/bin/cargo-deny)
deny: deps
	@[ -x '$(DENY)' ] || $(INSTALL_TOOL) --debug cargo-deny@0.20.2
	CARGO_DENY='$(DENY)' scripts/deny

docs: deps
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

# What can be published: parts that stand alone, and what they depend on. Each is built from its package, with the
# packages of the others; nothing is uploaded.
PUBLISHED := journal ppt rangelock pmem layout transfer limits sync
package: deps
	$(CARGO) package --allow-dirty $(addprefix -p quayfs-,$(PUBLISHED))

# The documents as a book, by book.toml. `cargo test --test repo` looks at their links.
MDBOOK := $(TOOLS)/bin/mdbook
book:
	@scripts/packages python3
	@[ -x '$(MDBOOK)' ] || $(INSTALL_TOOL) --no-default-features --features search mdbook@0.5.4
	'$(MDBOOK)' build --dest-dir '$(TARGET)/book'

# Pictures of terminals for the documents, from real runs, as root, of the dashboard (ten minutes), and of the book.
# `cargo test --test repo` says when those of terminals are out of date.
pictures: build
	@scripts/packages tmux python3 chromium pngquant
	@command -v npm >/dev/null || scripts/packages npm
	scripts/pictures '$(QUAYFS)' docs/pictures
	scripts/dashboard-picture '$(QUAYFS)' docs/pictures/dashboard.png
	$(MAKE) --no-print-directory book
	scripts/page-picture '$(TARGET)/book/index.html' docs/pictures/book.png

benches: deps
	$(CARGO) bench --workspace --no-run

# Runs WORKLOADS in DIRS (LABEL=PATH ...) in turn; without DIRS only builds what does.
WORKLOADS ?= durable
DIRS ?=
BENCH ?=
bench: build
	QUAYFS_COMMIT='$(COMMIT)' $(CARGO) build --release -p quayfs-bench
	$(if $(DIRS),'$(QUAYFS_BENCH)' run $(WORKLOADS) $(addprefix --dir ,$(DIRS)) $(BENCH))

lab: deps
	lab/run.sh

# These three need rustup and install a nightly toolchain. docs/internals/testing.md says what they cover.
fuzz: deps
	scripts/fuzz run $(SECONDS) $(TARGETS)

miri: deps
	scripts/nightly miri

sanitize: deps
	scripts/nightly sanitize

# Manual pages and completions of shells, from the definition of the command line, and what users read offline.
PAGES := $(TARGET)/release/pages
man: deps
	$(CARGO) build --release -p quayfs-pages
	rm -rf '$(PAGES)'
	'$(TARGET)/release/quayfs-pages' '$(PAGES)' $(DOCUMENTS)

# The names by which mount(8), umount(8), fsck(8) and mkfs(8) find the program.
HELPERS := mount.quayfs mount.fuse.quayfs umount.quayfs umount.fuse.quayfs fsck.quayfs fsck.fuse.quayfs mkfs.quayfs
# What users read offline.
DOCUMENTS := README.md CHANGELOG.md SECURITY.md \
	$(addprefix docs/,$(addsuffix .md,concepts install backends sizing semantics status stats trace doctor daemon \
	changing quotas troubleshooting fsck backup upgrade versions containers nfs remote performance))
UNITS := $(wildcard packaging/systemd/*.service packaging/systemd/*.timer packaging/systemd/*.target)

# The program is installed without symbols, which are kept apart: together they are six times its size.
install: build install-data
	scripts/split-debug install '$(QUAYFS)' '$(DESTDIR)' '$(PREFIX)/bin/quayfs'
	mkdir -p '$(DESTDIR)/sbin'
	for name in $(HELPERS); do ln -sf '$(PREFIX)/bin/quayfs' '$(DESTDIR)/sbin/'$$name || exit 1; done

# All but the program: what a package takes as it is. Debian has a folder of its own for what packages give to zsh.
ZSH = $(PREFIX)/share/zsh/$(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
install-data: man
	mkdir -p '$(DESTDIR)$(PREFIX)/share' '$(DESTDIR)$(PREFIX)/lib/udev/rules.d'
	cp -r $(addprefix '$(PAGES)'/,man bash-completion fish doc) '$(DESTDIR)$(PREFIX)/share/'
	install -D -m 644 packaging/grafana/quayfs.json '$(DESTDIR)$(PREFIX)/share/doc/quayfs/grafana/quayfs.json'
	install -D -m 644 -t '$(DESTDIR)$(ZSH)' '$(PAGES)'/zsh/site-functions/*
	sed 's|@PROGRAM@|$(PREFIX)/bin/quayfs|' packaging/udev/60-quayfs.rules \
		>'$(DESTDIR)$(PREFIX)/lib/udev/rules.d/60-quayfs.rules'
	$(if $(UNITS),install -D -m 644 -t '$(DESTDIR)$(PREFIX)/lib/systemd/system' $(UNITS))

uninstall:
	scripts/split-debug remove '$(DESTDIR)' '$(PREFIX)/bin/quayfs'
	for name in $(HELPERS); do rm -f '$(DESTDIR)/sbin/'$$name; done
	rm -f $(addprefix '$(DESTDIR)$(PREFIX)'/share/,man/man1/quayfs.1 man/man1/quayfs-*.1 man/man8/*.quayfs.8 \
		bash-completion/completions/quayfs bash-completion/completions/*.quayfs \
		fish/vendor_completions.d/quayfs.fish fish/vendor_completions.d/*.quayfs.fish)
	rm -f '$(DESTDIR)$(ZSH)'/_quayfs '$(DESTDIR)$(ZSH)'/_*.quayfs
	rm -f '$(DESTDIR)$(PREFIX)/lib/udev/rules.d/60-quayfs.rules'
	rm -rf '$(DESTDIR)$(PREFIX)/share/doc/quayfs'
	for unit in $(notdir $(UNITS)); do rm -f '$(DESTDIR)$(PREFIX)/lib/systemd/system/'$$unit; done

# A Debian package, and one with the symbols, in target/debian, from [package.metadata.deb] of Cargo.toml.
PACKAGED := $(TARGET)/release/package
DEB := $(TOOLS)/bin/cargo-deb
deb: build
	@scripts/packages dpkg-dev binutils
	@[ -x '$(DEB)' ] || $(INSTALL_TOOL) --debug cargo-deb@3.8.0
	rm -rf '$(PACKAGED)'
	$(MAKE) --no-print-directory install-data DESTDIR='$(PACKAGED)' PREFIX=/usr
	find '$(PACKAGED)/usr/share/man' -type f -exec gzip -9n {} +
	'$(DEB)' --no-build --dbgsym --compress-debug-symbols

# Installs, upgrades, removes and purges it, a mount in use meanwhile, in a copy of this system (as root), or of the one
# in ROOT.
ROOT ?= /
try-deb: deb
	packaging/try-deb "$$(ls -t '$(TARGET)'/debian/quayfs_*.deb | head -n 1)" '$(ROOT)'

# The same by packaging/quayfs.spec, from this tree: nothing that is built already is built anew. What it asks for are
# packages of other systems.
RPM = $$(ls -t '$(TARGET)'/rpm/RPMS/*/quayfs-[0-9]*.rpm | head -n 1)
rpm: build
	@scripts/packages rpm
	rm -rf '$(TARGET)/rpm'
	rpmbuild -bb --quiet --nodeps --build-in-place --define '_topdir $(TARGET)/rpm' packaging/quayfs.spec

# Installs it into an empty directory, holds what it has against the Debian package, and removes it again (as root).
try-rpm: rpm deb
	packaging/try-rpm "$(RPM)" "$$(ls -t '$(TARGET)'/debian/quayfs_*.deb | head -n 1)"
