# Each target sets up what it needs, and says nothing when there is nothing to do.
#   make demo ARGS="--windows 12"      make test ARGS="-k embedded"
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := .venv/bin/python
ARGS ?=
KAFKA ?=
STAMP := .venv/.installed
SITE := .venv/site
KERNEL_TOOLS := qemu-system-x86 busybox-static cpio xz-utils

.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' Makefile)

help:
	@echo "make TARGET, or make TARGET ARGS=\"options of its own\""
	@awk -F ':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' Makefile

##@ Begin
setup: $(STAMP)  ## everything into .venv, by hash
	@:

$(STAMP): pyproject.toml requirements/dev.txt requirements/build.txt scripts/setup.sh scripts/uv.sh
	@scripts/setup.sh
	@touch $@

# 130 is a Ctrl-C, by which a person ends it.
demo: $(STAMP)  ## a private fleet of 12,000 GPUs, three minutes; KAFKA=1
	@.venv/bin/pointillist demo $(if $(KAFKA),--kafka) $(ARGS) || exit $$(($$? == 130 ? 0 : $$?))

kafka: $(STAMP)  ## Apache Kafka on loopback; pointillist kafka stop ends it
	@.venv/bin/pointillist kafka start $(ARGS)

experiments: $(STAMP)  ## the simulator's report in docs/experiments; resumable
	@.venv/bin/pointillist experiment docs/experiments/report.toml $(ARGS)

##@ Test
test: $(STAMP) tools java  ## the tests, some minutes; README.md says how many
	@scripts/gpu_libraries.sh || [ $$? -eq 77 ]
	@scripts/cuda_wheels.sh || [ $$? -eq 77 ]
	@$(PYTHON) -m scripts.run_tests $(ARGS)

# What needs neither a broker nor this kernel's programs, and no more than seconds each.
test-quick: $(STAMP)  ## those without a broker or a program in the kernel
	@$(PYTHON) -m scripts.run_tests --quick $(ARGS)

# After a change on purpose of what others rely on; ARGS names tests that run a changed command.
golden: $(STAMP)  ## tests/golden written anew: options, columns, JSON keys, API
	@POINTILLIST_GOLDEN=1 $(PYTHON) -m pytest -q tests/golden $(ARGS)

# What a machine has no part for is left out, and says why.
test-all: $(STAMP) tools java  ## those of a release: faults, upgrades, pages, Spark, packages; half an hour
	@scripts/apt.sh "Tests of Debian packages" debootstrap iproute2 util-linux || true
	@scripts/apt.sh "Tests under other kernels" $(KERNEL_TOOLS) || true
	@for part in gpu_libraries cuda_wheels arm64_root otel_collector charts spark versions; do scripts/$$part.sh || true; done
	@$(PYTHON) -m scripts.run_tests --all $(ARGS)

# A quarter of an hour of one core; SCHEDULES says how many.
SCHEDULES ?= 10000
test-schedules: $(STAMP)  ## 10,000 schedules of faults, all roles; resumable
	@$(PYTHON) -m tests.schedules --schedules $(SCHEDULES) $(ARGS)

# Resumable: what was spent stands in tests/fuzz/fuzzed.json. ARGS="--only elf", ARGS=--keep.
MINUTES ?= 8
fuzz: $(STAMP)  ## parsers of strangers' bytes; MINUTES=60; resumable
	@scripts/fuzz.sh
	@$(PYTHON) -m tests.fuzz --minutes $(MINUTES) $(ARGS)

# Containers by podman with runc, in a network of their own.
test-images: images java tools  ## a fleet of containers up to a release; as root
	@$(PYTHON) -m pytest -m images $(ARGS)

# Fails for a known vulnerability alone: where the database is out of reach it says so.
audit-deps: $(STAMP)  ## locked packages against known vulnerabilities
	@scripts/audit_deps.sh || [ $$? -eq 77 ]

gpu-check:  ## this machine's GPUs beside nvidia-smi; needs no .venv
	@export LD_LIBRARY_PATH="$(CURDIR)/.tools/gpu/lib:$${LD_LIBRARY_PATH:-}"; \
	code=0; for part in gpu_check gpu_probes gpu_pressure "gpu_time $(ARGS)"; do \
		python3 -m scripts.$$part || code=$$?; done; exit $$code

##@ Develop
lint: lint-python lint-proto lint-dashboards lint-docs  ## ruff, mypy, import-linter, buf, dashboards, mkdocs

lint-python: $(STAMP)
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --quiet --check || { echo "make format puts this right" >&2; exit 1; }
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports >.venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }

lint-proto:
	@scripts/buf_lint.sh

lint-dashboards: $(STAMP)
	@scripts/dashboards_lint.sh

lint-docs: $(STAMP)
	@$(PYTHON) -m scripts.figures --check
	@# Not --quiet: mkdocs then overlooks the very warnings that --strict should fail on.
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --site-dir "$(SITE)" \
		>.venv/mkdocs.log 2>&1 || { grep -v INFO .venv/mkdocs.log; exit 1; }

format: $(STAMP)  ## ruff format and its safe fixes
	@.venv/bin/ruff check --quiet --fix
	@.venv/bin/ruff format --quiet

figures: $(STAMP)  ## the figures that pages quote, from bench/results
	@$(PYTHON) -m scripts.figures

# Resumable.
notebook: $(STAMP)  ## nine simulated weeks, and the documentation's notebook
	@mkdir -p bench/.cache
	@$(PYTHON) -m pointillist simulate docs/assets/notebook-fleet.toml --plan docs/assets/notebook-plan.toml \
		--store bench/.cache/practice
	@$(PYTHON) -m scripts.notebook_page --store bench/.cache/practice

lock:  ## requirement files from pyproject.toml
	@scripts/lock.sh $(ARGS)

clean:  ## remove what was made, installed packages too
	@rm -rf .venv .venv-* .tools site bench/.cache scripts/buf/node_modules

##@ Made by what needs it
# Debian packages for tests and benches; demo and agent need none but libbpf1, which eBPF sources load.
tools:  ## what tests and benches need of the system; root installs
	@scripts/setup_tools.sh

# Java and Maven, for the tests against a real broker: root installs them, others are told.
java: $(STAMP)  ## Java and the jars of Apache Kafka; root installs
	@$(PYTHON) -m pointillist.broker.local

# An environment of its own: Spark asks for an older pandas.
spark: $(STAMP) java  ## Spark into .venv-spark; 456 MB
	@scripts/spark.sh

# helm and compose's own reader of their Go modules, Kubernetes' schemas: into .tools/charts.
charts: $(STAMP)  ## helm, compose's reader and schemas into .tools; needs Go
	@scripts/charts.sh

# NVIDIA's driver libraries, compiler, NCCL and CUPTI, for tests: unpacked into .tools, never installed.
gpu-libraries:  ## NVIDIA's libraries and compiler into .tools; 340 MB
	@scripts/gpu_libraries.sh
	@scripts/cuda_wheels.sh

# OpenTelemetry's own collector, built of its Go modules into .tools/otelcol for long tests.
otel-collector:  ## OpenTelemetry's collector into .tools; needs Go
	@scripts/otel_collector.sh

# The built objects are committed.
bpf:  ## the BPF objects, which are committed
	@scripts/apt.sh "Building BPF objects" clang llvm libbpf-dev || true
	@$(MAKE) -C bpf

##@ Packages and images
# The same bytes from the same commit: dist/pointillist-VERSION-py3-none-any.whl.
wheel: $(STAMP)  ## dist/, byte for byte reproducible
	@scripts/wheel.sh

# An agent and the aggregators, for this release of Debian. MACHINE=aarch64 builds either for arm64, on x86-64.
deb: $(STAMP)  ## agent and aggregators, into dist/
	@scripts/deb.sh

# What they install, with licences: dist/*.cdx.json and docs/licences.md.
sbom: $(STAMP)  ## what both install, as CycloneDX, and docs/licences.md
	@scripts/sbom.sh

# Images of the roles: buildah puts them together from a base that debootstrap makes. IMAGES="agent web" names some.
IMAGES ?=
images: $(STAMP)  ## agent, aggregators and web, as root; IMAGES="agent web"
	@scripts/images.sh $(IMAGES)

gpu-kit: $(STAMP)  ## what gpu-check needs on a machine without network
	@scripts/gpu_kit.sh

##@ Measure, into bench/results
# Resumable. ARGS="--part NAME" measures one part, ARGS="--scale 0.1" tries a tenth, and writes nothing.
bench-round: $(STAMP)  ## what 100,000 reports cost both aggregators
	@$(PYTHON) -m bench round $(ARGS)

bench-demo: $(STAMP)  ## the demo's figures and the README's picture
	@$(PYTHON) -m bench demo $(ARGS)

bench-door: $(STAMP) tools  ## what an agent of a generated configuration costs; as root
	@$(PYTHON) -m bench door $(ARGS)

bench-first-release: $(STAMP)  ## from git clone to the first released number
	@$(PYTHON) -m bench suite --part first_release $(ARGS)

bench-arithmetic: $(STAMP)  ## noise, epsilons and lies, by arithmetic alone
	@$(PYTHON) -m bench arithmetic $(ARGS)

bench-house: $(STAMP)  ## how the product is divided into rooms and modules
	@$(PYTHON) -m bench.house $(ARGS)

bench-suite: $(STAMP)  ## how long make test, test-quick and test-all take
	@for run in test-quick test test-all; do $(MAKE) $$run || true; done
	@$(PYTHON) -m bench suite --part tests $(ARGS)

bench-readers: $(STAMP)  ## what readers are told: of single hosts, nothing; of the fleet, how exactly
	@$(PYTHON) -m bench readers $(ARGS)

bench-inputs: $(STAMP)  ## files and logs as people have them: what is read right
	@$(PYTHON) -m bench inputs $(ARGS)

bench-operations: $(STAMP) java  ## what operations do to a fleet: events, lowest versions
	@$(PYTHON) -m bench operations $(ARGS)

bench-scale: $(STAMP) java  ## what both roles carry and withstand
	@$(PYTHON) -m bench scale $(ARGS)

bench-operate: $(STAMP)  ## what running a fleet takes from people
	@$(PYTHON) -m bench operate $(ARGS)

bench-families: $(STAMP)  ## GPU time that no rule names
	@$(PYTHON) -m bench families $(ARGS)

bench-signatures: $(STAMP)  ## application classes on profiles that were not learned
	@$(PYTHON) -m bench signatures $(ARGS)

bench-probes: $(STAMP) tools  ## what probing GPU calls costs; as root
	@scripts/apt.sh "bench-probes" bpftrace gcc libc6-dev binutils
	@$(PYTHON) -m bench probes $(ARGS)

bench-gpu-time: $(STAMP) tools  ## what our library in GPU programs costs; as root
	@scripts/apt.sh "bench-gpu-time" bpftrace gcc libc6-dev binutils
	@$(PYTHON) -m bench gpu-time $(ARGS)

bench-agent: $(STAMP) tools  ## what an agent costs its host; as root, 20 minutes
	@$(PYTHON) -m bench agent $(ARGS)

bench-kernels: $(STAMP) tools  ## other kernels under QEMU, up to an agent's report; as root
	@scripts/apt.sh "bench-kernels" $(KERNEL_TOOLS)
	@$(PYTHON) -m bench kernels $(ARGS)

bench-discovery: $(STAMP) tools  ## what the first process of an unseen library misses
	@$(PYTHON) -m bench discovery $(ARGS)

bench-names: $(STAMP) tools  ## launches that have a kernel's name; 4 GB of wheels, as root
	@$(PYTHON) -m bench names $(ARGS)

bench-simulator: $(STAMP)  ## what 100,000 simulated GPUs cost, and would see
	@$(PYTHON) -m bench simulator $(ARGS)

# The year that it writes lies in bench/.cache.
bench-web: $(STAMP)  ## a year of releases: bytes, files, queries, viewers
	@$(PYTHON) -m bench web $(ARGS)

# Resumable: a run whose recording is there is not made again. ARGS="plan" says what is left.
bench-diagnosis: $(STAMP)  ## methods on recorded faults; ARGS="record --hours 1"
ifeq ($(ARGS),)
	@$(PYTHON) -m bench.diagnosis_figures
else
	@scripts/apt.sh "The fault bench" stress-ng python3-torch gcc libc6-dev iproute2 util-linux
	@$(PYTHON) -m bench.diagnosis.sitting $(ARGS)
endif

bench-diagnosis-gpu: $(STAMP)  ## the same on recordings of made GPU faults
	@$(PYTHON) -m bench.diagnosis.gpu_figures

bench-audit: $(STAMP)  ## the noise samplers' audit at 10^7 trials
	@$(PYTHON) -m bench audit $(ARGS)

bench-timing: $(STAMP)  ## whether a busy host's reports leave later
	@$(PYTHON) -m bench timing $(ARGS)
