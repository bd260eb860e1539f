# `make run` shows Nacre, `make test` tests it; `make help` lists the rest.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
NACRE := $(TARGET)/release/nacre
NACRE_BENCH := $(TARGET)/release/nacre-bench
# Where `make run` keeps its objects, and further flags for its server.
DATA ?= ./nacre-data
FLAGS ?=
# Seconds that `make fuzz` gives to each target.
FUZZ_SECONDS ?= 600
# Seconds that each soak with threads or processes of its own runs for.
SOAK_SECONDS ?= 600
# Histories of crashes and faults that `make soak-store` (on the simulated disk) and `make soak-fs` run, and of ranks that share a walk
# (`make soak-walk`); and of the first how many with all threads.
SOAK_HISTORIES ?= 100000
SOAK_INTERLEAVINGS ?= 20000
# Histories under a cleaner that never rests, which `make soak-store` runs: some seconds each.
SOAK_CLEANINGS ?= 100
# Levels of the chain of directories that `make soak-walk` walks, copies and removes.
SOAK_LEVELS ?= 1000000
# Pairs of access patterns that each test of `make soak-lock` compares with bitmaps or lists.
SOAK_PATTERNS ?= 3000000
# Histories (schedules from a seed) of clusters of lock servers with faults, most of them small: a million takes about seven minutes of
# processor time. Histories of a lock table, and states of each small system of lock servers that it runs through.
SOAK_CLUSTERS ?= 1000000
SOAK_TABLES ?= 100000
# Schedules of metadata ranks and clients with faults, of each kind, that `make soak-sequencer` runs.
SOAK_SCHEDULES ?= 100000
SOAK_STATES ?= 3000000

# Histories of shared logs under faults.
SOAK_LOGS ?= 100000

# How often `make soak-store` overwrites stores that are full to nine tenths.
SOAK_ROUNDS ?= 10

# Where `make install` puts the programs, their manual pages and completions.
PREFIX ?= /usr/local

# The MPI libraries that the tests try; `make mpi` takes whatever mpicc is.
MPIS ?= mpich openmpi
MPICC ?= mpicc
# The launcher that belongs to it.
MPIRUN ?= $(subst mpicc,mpirun,$(MPICC))

.PHONY: help bpf nacre run test test-fresh check c mpi bench soak soak-reflect soak-store soak-ceph soak-walk soak-lock soak-sequencer soak-fs soak-zlog ceph ceph-stop fuzz release install install-files package deny semver docs install-deps clean

help:
	@echo "make run        build, start a server in $(DATA), take a ten-second tour, stay up"
	@echo "make test       every test of the project (installs what they need, as root on Debian)"
	@echo "make test-fresh what a change has to pass, and make run, in a new root file system (as root; needs mmdebstrap, 40 GB, an hour)"
	@echo "make check      format, lints and documentation, with warnings denied"
	@echo "make mpi        nacre-mpi, for file trees by the ranks of MPI jobs, and the library of nacre mpirun (needs MPI, libclang:"
	@echo "                mpich libmpich-dev libclang-dev; MPICC=mpicc.openmpi chooses another MPI)"
	@echo "make c          the C library: $(TARGET)/release/libnacre.so (needs a C compiler)"
	@echo "make bpf        the reflector's programs for the kernel, from their sources into the tree (needs clang and libbpf-dev)"
	@echo "make bench      the studies, beside their peers, into experiments/ (QUICK=1 for a first look; those of the reflector and of the namespace need root)"
	@echo "make ceph       a throw-away Ceph cluster on loopback; make ceph-stop ends it"
	@echo "make fuzz       every fuzz target for $(FUZZ_SECONDS) s (needs a nightly toolchain and cargo-fuzz)"
	@echo "make soak       what finds the rare: make soak-reflect, two reflectors under members that come, go and crash, for $(SOAK_SECONDS) s,"
	@echo "                and every plane behind a device that is full for as long;"
	@echo "                make soak-store, the embedded store through $(SOAK_HISTORIES) histories of faults and crashes;"
	@echo "                make soak-ceph, clients that count on Ceph while OSDs and the monitor are killed, for $(SOAK_SECONDS) s;"
	@echo "                make soak-walk, the queue of a walk and its directories under $(SOAK_INTERLEAVINGS) interleavings of threads, twice,"
	@echo "                $(SOAK_HISTORIES) histories of the ranks of a walk, and a chain of $(SOAK_LEVELS) directories in bounded memory;"
	@echo "                make soak-lock, $(SOAK_PATTERNS) pairs of access patterns against bitmaps, $(SOAK_CLUSTERS) schedules of clusters of lock"
	@echo "                servers with faults, and clients in processes of their own at servers that are killed, for $(SOAK_SECONDS) s;"
	@echo "                make soak-sequencer, $(SOAK_SCHEDULES) schedules of metadata ranks and clients with faults, twice;"
	@echo "                make soak-fs, $(SOAK_HISTORIES) histories of a namespace whose ranks crash at any step;"
	@echo "                make soak-zlog, shared logs through $(SOAK_LOGS) histories of faults, crashes and recoveries"
	@echo "make release    the program and its studies: $(NACRE), $(NACRE_BENCH)"
	@echo "make install    both, stripped, their manual pages and completions, and what make c and make mpi made before, below $(PREFIX)"
	@echo "make package    packages of that for Debian and for systems with RPM, and a container file, in $(TARGET)/package"
	@echo "make deny       licences, sources and known vulnerabilities of all dependencies, by cargo-deny (make test does all but the last)"
	@echo "make semver     what has changed in the library's interface since the last release (BASE=REV: since any revision), by cargo-semver-checks"
	@echo "make docs       the library's documentation: $(TARGET)/doc/nacre/index.html"

RUST_IS_THERE = command -v $(CARGO) >/dev/null || { echo "make: Rust is missing; install it with rustup, 1.90 or newer" >&2; exit 1; }

# The program without its studies, whose peers' clients take longer to build than all of it.
nacre:
	@$(RUST_IS_THERE)
	$(CARGO) build --release --package nacre-cli

run: nacre
	@scripts/run $(NACRE) $(DATA) $(FLAGS)

release:
	@$(RUST_IS_THERE)
	$(CARGO) build --release --package nacre-cli --package nacre-bench

install: release install-files

# What was built already: NACRE and NACRE_BENCH are the programs.
install-files:
	install -D --strip $(NACRE) $(DESTDIR)$(PREFIX)/bin/nacre
	install -D --strip $(NACRE_BENCH) $(DESTDIR)$(PREFIX)/bin/nacre-bench
	for library in $(wildcard $(TARGET)/release/libnacre_mpiio_*.so); do \
		install -D --strip $$library $(DESTDIR)$(PREFIX)/lib/nacre/$${library##*/} || exit 1; \
	done
	if [ -e $(TARGET)/release/libnacre.so ]; then crates/c/install $(TARGET)/release $(PREFIX) $(DESTDIR); fi
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/share/nacre
	for unit in packaging/*.service; do \
		sed 's,/usr/local,$(PREFIX),' $$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit 1; \
	done
	install -m 644 monitoring/alerts.yml monitoring/dashboard.json $(DESTDIR)$(PREFIX)/share/nacre
	$(NACRE) man --folder $(DESTDIR)$(PREFIX)/share/man/man1
	$(NACRE_BENCH) man --folder $(DESTDIR)$(PREFIX)/share/man/man1
	for program in $(NACRE) $(NACRE_BENCH); do \
		name=$${program##*/}; \
		$$program completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$name && \
		$$program completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$name && \
		$$program completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$name.fish || exit 1; \
	done

# Licences, sources, duplicates and known vulnerabilities among the dependencies.
deny:
	@scripts/deny

# What breaks programs that use the library.
semver:
	@scripts/semver

package:
	@scripts/package $(TARGET)/package

bpf:
	@command -v $(or $(NACRE_CLANG),clang) >/dev/null || { echo "make: clang is missing; apt-get install clang libbpf-dev" >&2; exit 1; }
	NACRE_KEEP_OBJECTS=1 $(CARGO) build --package nacre-reflect-bpf

install-deps:
	@scripts/install-deps

test: install-deps
	@CARGO="$(CARGO)" MPIS="$(MPIS)" TARGET="$(TARGET)" scripts/test

test-fresh:
	@scripts/test-fresh

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --package nacre-logstore --all-targets --features shuttle -- -D warnings
	$(CARGO) clippy --package nacre-walk --all-targets --features shuttle -- -D warnings
	$(CARGO) fmt --manifest-path crates/mpi/Cargo.toml --package nacre-mpi --package nacre-mpiio --check
	MPICC=$(MPICC) $(CARGO) clippy --manifest-path crates/mpi/Cargo.toml --target-dir $(TARGET)/mpi --workspace --all-targets -- -D warnings
	$(CARGO) clippy --manifest-path crates/class/lua53/Cargo.toml --target-dir $(TARGET)/lua53 --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

mpi:
	@command -v $(MPICC) >/dev/null || { echo "make: $(MPICC) is missing; apt-get install mpich libmpich-dev libclang-dev" >&2; exit 1; }
	@# The bindings are built for one library; everything else is shared.
	@$(CARGO) clean --quiet --release --manifest-path crates/mpi/Cargo.toml --target-dir $(TARGET)/mpi --package mpi-sys
	MPICC=$(MPICC) $(CARGO) build --release --workspace --manifest-path crates/mpi/Cargo.toml --target-dir $(TARGET)/mpi
	@case $$($(MPIRUN) --version) in *"Open MPI"*|*OpenRTE*) mpi=openmpi ;; *) mpi=mpich ;; esac; \
		install -D $(TARGET)/mpi/release/libnacre_mpiio.so $(TARGET)/release/libnacre_mpiio_$$mpi.so && \
		echo "made $(TARGET)/release/libnacre_mpiio_$$mpi.so: nacre mpirun --mpi $$mpi -n 4 ./program"
	@echo "made $(TARGET)/mpi/release/nacre-mpi: mpirun -n 4 $(TARGET)/mpi/release/nacre-mpi walk /some/tree"

# Without what it does not use: built beside the program, it would have Lua in it.
c:
	@$(RUST_IS_THERE)
	$(CARGO) build --release --package nacre-c
	CC="$(CC)" crates/c/link $(TARGET)/release/libnacre_c.a $(TARGET)/release

bench: release install-deps mpi
	experiments/rmw/run.sh $(abspath $(NACRE))
	experiments/locks/run.sh $(abspath $(NACRE))
	experiments/s3d/run.sh $(abspath $(NACRE))
	experiments/s3asim/run.sh $(abspath $(NACRE))
	experiments/sequencer/run.sh $(abspath $(NACRE))
	experiments/failover/run.sh $(abspath $(NACRE))
	experiments/balance/run.sh $(abspath $(NACRE))
	experiments/namespace/run.sh $(abspath $(NACRE))
	experiments/zlog/run.sh $(abspath $(NACRE))
	experiments/class/run.sh $(abspath $(NACRE))
	experiments/propagate/run.sh $(abspath $(NACRE))
	MPIRUN=$(MPIRUN) NACRE_MPI=$(abspath $(TARGET)/mpi/release/nacre-mpi) experiments/walk/run.sh $(abspath $(NACRE))
	experiments/trees/run.sh $(abspath $(NACRE))
	experiments/reflect/run.sh $(abspath $(NACRE))

ceph:
	@scripts/ceph start

ceph-stop:
	@scripts/ceph stop

fuzz:
	@scripts/fuzz $(FUZZ_SECONDS)

# Every part of the project that has a soak adds its own here.
soak: soak-reflect soak-store soak-ceph soak-walk soak-lock soak-sequencer soak-fs soak-zlog

soak-reflect:
	SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --package nacre-cli --test reflect_soak -- --nocapture
	NACRE_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --package nacre-planes --test contract neighbours_behind_a_full_device

# A failure names its seed; NACRE_SEED=n runs that history again.
soak-store:
	NACRE_HISTORIES=$(SOAK_HISTORIES) $(CARGO) test --package nacre-logstore --test crash
	NACRE_HISTORIES=$(SOAK_CLEANINGS) $(CARGO) test --package nacre-logstore --test replace histories
	NACRE_HISTORIES=$(SOAK_INTERLEAVINGS) $(CARGO) test --package nacre-logstore --features shuttle --test concurrent
	NACRE_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --package nacre-logstore --test concurrent
	NACRE_FULL_ROUNDS=$(SOAK_ROUNDS) $(CARGO) test --package nacre-cli --test full

soak-walk:
	NACRE_RANKS_HISTORIES=$(SOAK_HISTORIES) $(CARGO) test --release --package nacre-ranks --lib history
	NACRE_ITERATIONS=$(SOAK_INTERLEAVINGS) $(CARGO) test --package nacre-walk --features shuttle --lib concurrent
	NACRE_LEVELS=$(SOAK_LEVELS) $(CARGO) test --release --package nacre-cli --test walk_depth -- --nocapture

soak-lock:
	NACRE_HISTORIES=$(SOAK_PATTERNS) $(CARGO) test --release --package nacre-lock --test pattern
	NACRE_LOCK_HISTORIES=$(SOAK_TABLES) $(CARGO) test --release --package nacre-lock --test table
	NACRE_LOCK_HISTORIES=$(SOAK_CLUSTERS) NACRE_LOCK_CLUSTER=10000,1000 $(CARGO) test --release --package nacre-lock --test history
	NACRE_LOCK_STATES=$(SOAK_STATES) $(CARGO) test --release --package nacre-lock --test exhaustive
	SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --package nacre-cli --test lock_history -- --nocapture

soak-sequencer:
	NACRE_SOAK_SEQUENCERS=$(SOAK_SCHEDULES) $(CARGO) test --release --package nacre-meta --test rank -- schedule moves

# A failure names its seed; NACRE_SEED=n runs that history again.
soak-fs:
	NACRE_META_HISTORIES=$(SOAK_HISTORIES) $(CARGO) test --release --package nacre-meta --test namespace history

soak-zlog:
	NACRE_ZLOG_HISTORIES=$(SOAK_LOGS) $(CARGO) test --release --package nacre-zlog --test main histories


# The promise is for an hour: make soak-ceph SOAK_SECONDS=3600.
soak-ceph:
	NACRE_CEPH_HISTORIES=60 $(CARGO) test --package nacre-rados --test conformance
	SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --package nacre-rados --test soak -- --nocapture

docs:
	$(CARGO) doc --workspace --no-deps

clean:
	$(CARGO) clean
