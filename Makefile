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
PACKAGES := wire privacy transport kernels collectors diagnosis edge_agent aggregator analytics simulator web pages pointillist
SITE := .venv/site

.PHONY: help setup tools otel-collector bpf demo test test-quick test-long test-faults test-schedules fuzz audit-deps spark test-spark gpu-check gpu-kit lint lint-python lint-proto lint-docs figures format lock
.PHONY: wheel deb test-deb sbom
.PHONY: images test-images charts test-charts
.PHONY: kafka java bench-round bench-demo bench-audit bench-timing bench-outages bench-kafka bench-scale bench-agent clean
.PHONY: bench-families bench-signatures bench-discovery bench-probes bench-simulator experiments notebook
.PHONY: bench-diagnosis bench-diagnosis-gpu bench-first-release bench-house bench-suite bench-arithmetic bench-gpu-time bench-web bench-operate gpu-libraries

help:
	@echo "make setup         .venv with everything, by hash"
	@echo "make tools         what tests and benches need of the system; as root it is installed"
	@echo "make gpu-libraries NVIDIA's driver libraries, compiler and NCCL, into .tools, for tests; 340 MB"
	@echo "make otel-collector  OpenTelemetry's collector, into .tools, for test-long; needs Go, minutes once"
	@echo "make bpf           the BPF objects anew"
	@echo "make wheel         the wheel, into dist/, byte for byte reproducible"
	@echo "make deb           Debian packages of the agent and of the aggregators, into dist/"
	@echo "make sbom          what both install, as CycloneDX into dist/, and docs/licences.md"
	@echo "make test-deb      both installed, run, upgraded and removed in a root of debootstrap's; as root"
	@echo "make demo          a private fleet of 12,000 GPUs on this machine, under three minutes"
	@echo "make demo KAFKA=1  the same through Apache Kafka"
	@echo "make experiments   the simulator's report in docs/experiments, anew; resumable"
	@echo "make kafka         Apache Kafka on loopback; pointillist kafka stop ends it"
	@echo "make test          the tests, for some minutes; README.md says how many"
	@echo "make test-quick    those that need no broker and no program in the kernel"
	@echo "make test-faults   every fault: killed roles, full disks, clocks, messages, brokers"
	@echo "make test-long     those that take longer: three brokers, OpenTelemetry's collector"
	@echo "make images        images of agent, aggregators and web, as root; some minutes"
	@echo "make test-images   a fleet of containers up to a release, as root; five minutes"
	@echo "make test-charts   the Helm chart and the compose file, judged by their own programs; needs Go, minutes once"
	@echo "make spark         Spark in an environment of its own, .venv-spark; 456 MB, once"
	@echo "make test-spark    those that run Spark, against a broker"
	@echo "make test-schedules  10,000 schedules of faults against all roles; resumable"
	@echo "make fuzz MINUTES=60  every parser of a stranger's bytes, by coverage; resumable"
	@echo "make audit-deps    locked packages against the database of known vulnerabilities"
	@echo "make lint          ruff, mypy, import-linter, buf, dashboards, mkdocs"
	@echo "make notebook      nine simulated weeks, and the notebook of the documentation on them, anew"
	@echo "make figures       the figures that pages quote, from bench/results"
	@echo "make format        ruff format and its safe fixes"
	@echo "make lock          requirement files from pyproject.toml"
	@echo "make gpu-check     what this machine's GPUs say beside nvidia-smi; no .venv, no network"
	@echo "make gpu-kit       what gpu-check needs, into .tools/gpu, under 64 MiB, to be carried to a GPU machine"
	@echo "make bench-round   what 100,000 reports cost both aggregators"
	@echo "make bench-demo    the demo's figures and the README's picture"
	@echo "make bench-outages how many windows an outage of Kafka costs; 9 minutes, resumable"
	@echo "make bench-first-release  from git clone to the first released number, packages cached"
	@echo "make bench-house   how the product is divided into rooms and modules"
	@echo "make bench-suite   how long make test and make test-quick take"
	@echo "make bench-operate what running a fleet takes from people: signing for 12,500 hosts"
	@echo "make bench-kafka   what Kafka costs agents and the Leader"
	@echo "make bench-scale   what both roles carry and withstand, by number of workers"
	@echo "make bench-families   GPU time that no rule names, and names the rules never saw"
	@echo "make bench-signatures application classes on profiles that were not learned from"
	@echo "make bench-probes      what probing GPU calls costs, beside bpftrace; as root"
	@echo "make bench-gpu-time    what the library in GPU programs and a probed launch through the driver cost; as root"
	@echo "make bench-agent   what one agent costs its host; as root, 20 minutes"
	@echo "make bench-discovery  what the first process of an unseen GPU library misses"
	@echo "make bench-simulator   what 100,000 simulated GPUs cost, and what they would see"
	@echo "make bench-web     a year of releases: its bytes, its files, its queries, its viewers"
	@echo "make bench-diagnosis ARGS=\"record --hours 1\"  real faults, recorded; as root, resumable"
	@echo "make bench-diagnosis-gpu ARGS=record  made GPU faults, recorded; judges them without ARGS"
	@echo "make bench-diagnosis   every method on the recorded faults"
	@echo "make bench-audit   the noise samplers' audit at 10^7 trials"
	@echo "make bench-timing  whether a busy host's reports leave later"

setup: $(STAMP)
	@:

$(STAMP): pyproject.toml requirements/dev.txt requirements/build.txt scripts/setup.sh scripts/uv.sh
	@scripts/setup.sh
	@touch $@

# Debian packages for tests and benches; demo and agent need none but libbpf1, which eBPF sources load.
tools:
	@scripts/setup_tools.sh

# The built objects are committed.
bpf:
	@scripts/apt.sh "Building BPF objects" clang llvm libbpf-dev || true
	@$(MAKE) -C bpf

# The same bytes from the same commit: dist/pointillist-VERSION-py3-none-any.whl.
wheel: $(STAMP)
	@scripts/wheel.sh

# An agent and the aggregators, for this release of Debian.
deb: $(STAMP)
	@scripts/deb.sh

# What they install, with licences: dist/*.cdx.json and docs/licences.md.
sbom: $(STAMP)
	@scripts/sbom.sh

# Installed, run, upgraded, removed and purged for real, in a root of its own.
test-deb: $(STAMP)
	@scripts/apt.sh "Tests of Debian packages" debootstrap iproute2 util-linux
	@$(PYTHON) -m pytest -m deb tests/packages $(ARGS)

demo: $(STAMP)
	@.venv/bin/pointillist demo $(if $(KAFKA),--kafka) $(ARGS)

kafka: $(STAMP)
	@.venv/bin/pointillist kafka start $(ARGS)

experiments: $(STAMP)
	@.venv/bin/pointillist experiment docs/experiments/report.toml $(ARGS)

# Java and Maven, for the tests against a real broker: root installs them, others are told.
java: $(STAMP)
	@$(PYTHON) -m pointillist.broker.jars

# NVIDIA's driver libraries, compiler, NCCL and CUPTI, for tests: unpacked into .tools, never installed.
gpu-libraries:
	@scripts/gpu_libraries.sh
	@scripts/cuda_wheels.sh

# OpenTelemetry's own collector, built of its Go modules into .tools/otelcol for long tests.
otel-collector:
	@scripts/otel_collector.sh

test: $(STAMP) tools
	@scripts/gpu_libraries.sh || [ $$? -eq 77 ]
	@scripts/cuda_wheels.sh || [ $$? -eq 77 ]
	@$(PYTHON) -m scripts.run_tests $(ARGS)

# What needs neither a broker nor this kernel's programs, and no more than seconds each.
test-quick: $(STAMP)
	@$(PYTHON) -m scripts.run_tests --quick $(ARGS)

# What a loaded machine cannot do in the time of an ordinary run.
test-long: $(STAMP) tools java
	@scripts/otel_collector.sh || [ $$? -eq 77 ]
	@$(PYTHON) -m pytest -m "long and not fault_case" $(ARGS)

# Every fault of docs/faults.md, each reached at its point of the code.
test-faults: $(STAMP) tools java
	@$(PYTHON) -m pytest -m fault_case $(ARGS)

# An environment of its own: Spark asks for an older pandas.
spark: $(STAMP) java
	@scripts/spark.sh

test-spark: spark
	@$(PYTHON) -m pytest -m spark $(ARGS)

# A quarter of an hour of one core; SCHEDULES says how many.
SCHEDULES ?= 10000
test-schedules: $(STAMP)
	@$(PYTHON) -m tests.schedules --schedules $(SCHEDULES) $(ARGS)

# Resumable: what was spent stands in tests/fuzz/fuzzed.json. ARGS="--only elf", ARGS=--keep.
MINUTES ?= 8
fuzz: $(STAMP)
	@scripts/fuzz.sh
	@$(PYTHON) -m tests.fuzz --minutes $(MINUTES) $(ARGS)

# Images of the roles: buildah puts them together from a base that debootstrap makes. IMAGES="agent web" names some.
IMAGES ?=
images: $(STAMP)
	@scripts/images.sh $(IMAGES)

# Containers by podman with runc, in a network of their own.
test-images: images java tools
	@$(PYTHON) -m pytest -m images $(ARGS)

# helm and compose's own reader of their Go modules, Kubernetes' schemas: into .tools/charts.
charts: $(STAMP)
	@scripts/charts.sh

test-charts: charts
	@$(PYTHON) -m pytest -m charts $(ARGS)

# Fails for a known vulnerability alone: where the database is out of reach it says so.
audit-deps: $(STAMP)
	@scripts/audit_deps.sh || [ $$? -eq 77 ]

gpu-check:
	@export LD_LIBRARY_PATH="$(CURDIR)/.tools/gpu/lib:$${LD_LIBRARY_PATH:-}"; \
	code=0; for script in gpu_check gpu_probes gpu_pressure; do python3 scripts/$$script.py || code=$$?; done; \
	python3 -m scripts.gpu_time $(ARGS) || code=$$?; exit $$code

gpu-kit: $(STAMP)
	@scripts/gpu_kit.sh

lint: lint-python lint-proto lint-dashboards lint-docs

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
	@$(PYTHON) -m scripts.owners_page --check
	@$(PYTHON) -m scripts.epsilon_page --check
	@# Not --quiet: mkdocs then overlooks the very warnings that --strict should fail on.
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --site-dir "$(SITE)" \
		>.venv/mkdocs.log 2>&1 || { grep -v INFO .venv/mkdocs.log; exit 1; }

# Resumable.
notebook: $(STAMP)
	@mkdir -p bench/.cache
	@$(PYTHON) -m pointillist simulate docs/assets/notebook-fleet.toml --plan docs/assets/notebook-plan.toml \
		--store bench/.cache/practice
	@$(PYTHON) -m scripts.notebook_page --store bench/.cache/practice

figures: $(STAMP)
	@$(PYTHON) -m scripts.figures

format: $(STAMP)
	@.venv/bin/ruff check --quiet --fix
	@.venv/bin/ruff format --quiet

lock:
	@scripts/lock.sh $(ARGS)

bench-round: $(STAMP)
	@$(PYTHON) -m bench.round $(ARGS)

bench-demo: $(STAMP)
	@$(PYTHON) -m bench.demo

bench-outages: $(STAMP) java
	@$(PYTHON) -m bench.outages $(ARGS)

bench-first-release: $(STAMP)
	@$(PYTHON) -m bench.first_release $(ARGS)

bench-arithmetic: $(STAMP)
	@$(PYTHON) -m bench.arithmetic

bench-house: $(STAMP)
	@$(PYTHON) -m bench.house $(ARGS)

bench-suite: $(STAMP)
	@$(PYTHON) -m bench.suite $(ARGS)

bench-scale: $(STAMP) spark
	@$(PYTHON) -m bench.scale $(ARGS)

# ARGS="--part signing" measures one part; the others keep what was committed.
bench-operate: $(STAMP)
	@$(PYTHON) -m bench.operate $(ARGS)

bench-kafka: $(STAMP) java
	@$(PYTHON) -m bench.kafka $(ARGS)

bench-families: $(STAMP)
	@$(PYTHON) -m bench.families

bench-signatures: $(STAMP)
	@$(PYTHON) -m bench.signatures

bench-probes: $(STAMP) tools
	@scripts/apt.sh "bench-probes" bpftrace gcc libc6-dev binutils
	@$(PYTHON) -m bench.probes $(ARGS)

bench-gpu-time: $(STAMP) tools
	@scripts/apt.sh "bench-gpu-time" bpftrace gcc libc6-dev binutils
	@$(PYTHON) -m bench.gpu_time $(ARGS)

bench-agent: $(STAMP) tools
	@$(PYTHON) -m bench.agent $(ARGS)

bench-discovery: $(STAMP) tools
	@$(PYTHON) -m bench.discovery

# Resumable: what was measured under this commit is kept; ARGS="--fresh" measures again.
bench-simulator: $(STAMP)
	@$(PYTHON) -m bench.simulator $(ARGS)

# Resumable; ARGS="--part store" measures one part. The year that it writes lies in bench/.cache.
bench-web: $(STAMP)
	@$(PYTHON) -m bench.web $(ARGS)

# Resumable: a run whose recording is there is not made again. ARGS="plan" says what is left.
bench-diagnosis: $(STAMP)
ifeq ($(ARGS),)
	@$(PYTHON) -m bench.diagnosis_figures
else
	@scripts/apt.sh "The fault bench" stress-ng python3-torch gcc libc6-dev iproute2 util-linux
	@$(PYTHON) -m bench.diagnosis $(ARGS)
endif

bench-diagnosis-gpu: $(STAMP) tools
	@$(PYTHON) -m bench.diagnosis.gpu_faults $(or $(ARGS),judge)

bench-audit: $(STAMP)
	@$(PYTHON) -m bench.audit $(ARGS)

bench-timing: $(STAMP)
	@$(PYTHON) -m bench.timing $(ARGS)

clean:
	@rm -rf .venv .venv-spark .tools site bench/.cache scripts/buf/node_modules
