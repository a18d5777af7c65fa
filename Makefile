# The commands of developers and users. `make demo` and `make test` need Python 3.11 or 3.12 with its headers, a C compiler and make;
# requirements.lock pins all packages by version and hash. Nothing needs root. The native front is built if Go is on PATH or can be
# fetched; with REQUIRED=1 a missing front is an error.
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3; do \
	$$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$candidate && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# durable-rules ships as source, and its setup.py drops the interpreter's flags. Without these it is built at -O0 with undefined signed
# overflow. The last one records them in the library, where tests/unit/test_packaging.py reads them. --no-cache-dir, because pip's cache
# does not distinguish wheels by their flags.
DURABLE_RULES_FLAGS := CPPFLAGS="-O2 -fwrapv -frecord-gcc-switches"
# Puts the compiled tree before the installed packages.
COMPILED := PYTHONPATH="$(CURDIR)/build/compiled$${PYTHONPATH:+:$$PYTHONPATH}"
# Where `make proto` puts the generated code; .ci/contract generates elsewhere to compare.
GENERATED ?= proto/gen/python
# Arguments of `make bench`, e.g. BENCH="--gate --json build/bench.json".
BENCH ?=
COMPILE ?= true
# gavel-client, gavel-rules and gavel-arbiter.
DISTRIBUTIONS := ./client/python ./rules ./server
# Every process imports and collects all tests, which takes it nine seconds. On two processors, four processes leave a third of the time idle.
TEST_PROCESSES := $(shell count=$$(getconf _NPROCESSORS_ONLN); echo $$((count < 4 ? count + 4 : 8)))
# Long tests compute more than they wait, and a test that takes longer than its timeout has failed.
LONG_TEST_PROCESSES := $(shell count=$$(getconf _NPROCESSORS_ONLN); echo $$((count < 8 ? count + 1 : 8)))
# Number of evaluations, and further arguments, of `make fuzz`.
FUZZ_EVALUATIONS ?= 1000000
FUZZ ?=
# Further arguments of a campaign, e.g. CAMPAIGN="--seed 7".
CAMPAIGN ?=
# Python's allocator checks each block, and a crash prints where it happened.
CHECKING := PYTHONMALLOC=debug PYTHONFAULTHANDLER=1
GHZ_VERSION := v0.120.0
# The native front and its sources. REQUIRED=1: fail if the front cannot be built.
FRONT := $(BIN)/gavel-front
FRONT_SOURCES := $(shell find server/front -type f)
REQUIRED ?=
export REQUIRED
# Further arguments of the image build, e.g. IMAGE_FLAGS="--build-arg PIP_INDEX_URL=…".
IMAGE_FLAGS ?=

.PHONY: setup demo test test-long test-compiled serve serve-compiled compiled front check lint types other-types lint-front contract bench soak \
	proto methods schemas image wheels lock

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/gavel demo

serve: $(STAMP) front
	$(BIN)/gavel serve

# The server with the compiled hot path, as in the image. The first line of its log names the build.
serve-compiled: compiled front
	$(COMPILED) $(BIN)/gavel serve

# Compiles the hot path with mypyc into build/compiled, an importable tree, if a source has changed.
compiled: $(STAMP)
	$(BIN)/python server/hatch_build.py

# Builds the native front, the Go program that speaks gRPC for the server (docs/decisions/0031-two-transports.md). If Go is missing and
# cannot be fetched, it prints a line, and the server speaks gRPC itself.
front: $(FRONT)

$(FRONT): $(FRONT_SOURCES) | $(STAMP)
	server/front/tool build "$(CURDIR)/$@"

# The tests start hundreds of Python processes. Without files of bytecode each of them would compile its modules again, a third of all work.
test test-long test-compiled: export PYTHONDONTWRITEBYTECODE :=

# Some tests compute and others wait for servers, so there are more processes than processors. Files of tests start in order: those of
# servers before the unit tests, which are short and fill the end.
test: $(STAMP) front
	.ci/pytest -m "not long" --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder tests --ignore=tests/compiled

# The tests that take long: memory over thousands of calls, mutations of the shipped rule sets, rule sets of the largest size. They run once, on
# the build that users run: both builds have one source, so a mistake of the source shows on either, and one of the compiler on this alone.
test-long: compiled front
	TEST_BUILD=compiled $(COMPILED) .ci/pytest -m long --numprocesses=$(LONG_TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder tests

# What the compiled build might change: the core and the server. The rest ran on the source, and these would run the same code again:
# - the client imports no compiled module (import-linter), apart from the worker that derives facts (tests/unit/client/consumers);
# - command lines, agents, adapters, MCP servers, workers and verifiers of proofs (the other folders of tests/e2e) are processes beside the server,
#   and send it the requests that the scenarios send;
# - prose, layout, packages and wheels of the source.
COMPILED_TESTS := tests/compiled \
	$(addprefix tests/e2e/,buses concurrency faults hostile identity postgresql telemetry transport test_mvp_gates.py) \
	tests/simulation tests/scenarios tests/contract \
	$(addprefix tests/unit/,rules server client/consumers test_cookbook.py test_hashing_vectors.py)

# Runs these tests on the compiled build, which tests/conftest.py verifies, and those that compare both builds. One transport is enough, the one
# with compiled modules of its own: `test-long` runs on both.
test-compiled: compiled front
	TEST_BUILD=compiled TEST_FRONTS=native $(COMPILED) .ci/pytest -m "not long" --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(COMPILED_TESTS)

# Checks that use one processor each run two at a time, beside the compiler; then the tests, which use all of them.
check: $(STAMP)
	$(MAKE) --no-print-directory --jobs=2 lint compiled types other-types lint-front front contract
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-long
	$(MAKE) --no-print-directory test-compiled

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

types: $(STAMP)
	$(BIN)/mypy

# What users install, on the other Pythons that it supports.
other-types: $(STAMP)
	$(BIN)/mypy --python-version 3.12 rules/gavel_rules server/gavel_server client/python/gavel_client
	$(BIN)/mypy --python-version 3.10 client/python/gavel_client

lint-front: $(STAMP)
	server/front/tool check
	server/front/tool check-monitoring

contract: $(STAMP)
	.ci/contract

# Compares the two rule engines on random documents and cases. FUZZ="--seed 123" repeats a run. `make test` includes a few thousand
# evaluations.
.PHONY: fuzz
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run --evaluations $(FUZZ_EVALUATIONS) $(FUZZ)

# Needs Go to build ghz, the load generator, the first time.
bench: $(STAMP) compiled front build/ghz
	$(BIN)/python -m tests.load.bench --ghz build/ghz $(BENCH)

# Takes minutes: 200,000 evaluations and 2,000 rule sets on the engines alone, and 2,000 versions deployed and activated on one server.
# Memory must stay bounded.
soak: $(STAMP)
	$(BIN)/python -m tests.load.endurance
	$(BIN)/python -m tests.load.redeployments --cycles 2000

# Campaigns against the compiled build. `make test-compiled` has a short form of each (tests/compiled).
# Redis fails 200 times under load; 20 minutes.
.PHONY: outages hostile sanitize
outages: compiled front
	$(CHECKING) $(COMPILED) $(BIN)/python -m tests.campaigns.outages $(CAMPAIGN)

# Hostile and greedy callers beside a well-behaved one; 10 minutes.
hostile: compiled front
	$(COMPILED) $(BIN)/python -m tests.campaigns.hostile $(CAMPAIGN)

# 10,000 hostile requests with and without credentials to a server that requires them, beside a good caller; a minute or two.
.PHONY: intruders
intruders: compiled front
	$(COMPILED) $(BIN)/python -m tests.campaigns.intruders $(CAMPAIGN)

# Random input to the compiled core under Python's checking allocator; 10 minutes.
sanitize: compiled
	$(COMPILED) $(BIN)/python -m tests.campaigns.sanitize $(CAMPAIGN)

# New counters get their past from a log of 500,000 events while another action is proposed; two minutes.
.PHONY: activation
activation: compiled front
	$(COMPILED) $(BIN)/python -m tests.load.counters.activation $(CAMPAIGN)

# Counters against a recount of the log, over a million random events; half an hour.
.PHONY: recount
recount: compiled
	$(COMPILED) $(BIN)/python -m tests.campaigns.recount $(CAMPAIGN)

# Faults of processes, disks, memory, clocks and links on each kind of log; what clients saw must be linearizable; half an hour.
.PHONY: faults
faults: compiled front
	$(COMPILED) $(BIN)/python -m tests.campaigns.faults $(CAMPAIGN)

# Masters of a Redis Cluster die under load on fifty buses; a few minutes.
.PHONY: failover
failover: compiled front
	$(COMPILED) $(BIN)/python -m tests.campaigns.failover $(CAMPAIGN)

# One budget, 64 clients, two servers and ten kills; a few minutes.
.PHONY: budget
budget: compiled
	$(COMPILED) $(BIN)/python -m tests.campaigns.budget $(CAMPAIGN)

build/ghz:
	@command -v go >/dev/null || { echo "gavel: make bench needs Go to build ghz; install Go, or put ghz $(GHZ_VERSION) at build/ghz" >&2; exit 1; }
	GOBIN="$(CURDIR)/build" go install github.com/bojand/ghz/cmd/ghz@$(GHZ_VERSION)

# Generates the Python code of the contract, with a protoc of its own that is older than the one of .venv (proto/requirements.txt).
PROTOC_STAMP := build/protoc/.stamp
PROTOC = PATH="$(BIN):$$PATH" build/protoc/bin/python -m grpc_tools.protoc -Iproto
$(PROTOC_STAMP): proto/requirements.txt | $(STAMP)
	$(BIN)/python -m venv --clear build/protoc
	build/protoc/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes --only-binary :all: --requirement proto/requirements.txt
	touch $(PROTOC_STAMP)

proto: $(STAMP) $(PROTOC_STAMP)
	rm -rf $(GENERATED)/gavel && mkdir -p $(GENERATED)/gavel/v1 $(GENERATED)/gavel/internal/v1
	touch $(GENERATED)/gavel/__init__.py $(GENERATED)/gavel/py.typed $(GENERATED)/gavel/v1/__init__.py
	touch $(GENERATED)/gavel/internal/__init__.py $(GENERATED)/gavel/internal/v1/__init__.py
	$(PROTOC) --python_out=$(GENERATED) --mypy_out=quiet:$(GENERATED) proto/gavel/v1/*.proto proto/gavel/internal/v1/*.proto
	$(PROTOC) --grpc_python_out=$(GENERATED) --mypy_grpc_out=quiet:$(GENERATED) proto/gavel/v1/*_service.proto

# Generates the methods of the Python clients from client/python/gavel_client/rpc/calls/.
methods: $(STAMP)
	$(BIN)/python client/python/generate_methods.py

# Generates the JSON Schemas with which editors check rule sets and their tests, from the compiler's own models.
schemas: $(STAMP)
	mkdir -p rules/gavel_rules/schemas
	for name in rule-set test grants grants-test; do \
		$(BIN)/python -c "from gavel_rules.authoring.json_schemas import generate_schema; print(generate_schema('$$name'), end='')" \
			> rules/gavel_rules/schemas/$$name.json || exit 1; done

# Builds the container image gavel:latest with docker, or with buildah if docker does not run.
image:
	if docker info >/dev/null 2>&1; then docker build $(IMAGE_FLAGS) --tag gavel:latest .; \
	elif command -v buildah >/dev/null; then buildah build --format docker $(IMAGE_FLAGS) --tag gavel:latest .; \
	else echo "gavel: make image needs a running docker, or buildah; start or install one" >&2; exit 1; fi

# Builds wheels of every locked package and of Gavel's three distributions, from which the image installs. Gavel's hot path is compiled;
# COMPILE=false leaves it interpreted. The wheel of the rules brings the Rete engine, so none of durable-rules is needed.
wheels: $(STAMP) front
	rm -rf build/wheels
	awk '/^[a-z]/ { keep = !/^durable-rules==/ } keep' requirements.lock > $(VENV)/wheels.txt
	$(PIP) wheel --require-hashes --no-build-isolation --only-binary :all: --requirement $(VENV)/wheels.txt --wheel-dir build/wheels
	GAVEL_COMPILE=$(COMPILE) $(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheels $(DISTRIBUTIONS)

# Rewrites the lock files from the four pyproject.toml, after a change of dependencies. Needs uv. CrewAI's pins of mcp, openai and pydantic exclude
# those of the other extras, so it has a file and an environment of its own (tests/e2e/adapters/crewai/environment.py).
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-annotate \
	$(patsubst %,--no-emit-package %,gavel-client gavel-rules gavel-arbiter)
lock:
	$(LOCK) --group dev server/pyproject.toml --output-file requirements.lock
	$(LOCK) --extra crewai client/python/pyproject.toml --output-file tests/e2e/adapters/crewai/requirements.txt

# Checks for Python, venv, the C compiler and the headers before anything is fetched.
define PREREQUISITES
import importlib.util, os, shlex, subprocess, sys, sysconfig
if not (3, 11) <= sys.version_info[:2] <= (3, 12):
    sys.exit("gavel: Python " + sys.version.split()[0] + " is not supported; use Python 3.11 or 3.12: make PYTHON=python3.11")
if importlib.util.find_spec("ensurepip") is None:
    sys.exit("gavel: " + sys.executable + " has no venv module; install it (Debian, Ubuntu: python3-venv)")
compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
command = [*compiler, "-I" + sysconfig.get_path("include"), "-fsyntax-only", "-x", "c", "-"]
try:
    compilation = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True)
except FileNotFoundError:
    sys.exit("gavel: C compiler " + compiler[0] + " not found; install it (Debian, Ubuntu: gcc) or use another one: make CC=clang")
if compilation.returncode:
    sys.exit("gavel: " + compiler[0] + " cannot compile against Python.h; install the headers (Debian, Ubuntu: python3-dev). Its output: " + compilation.stderr)
endef
export PREREQUISITES

# The wheels, durable-rules' build tools included, are installed first. durable-rules then builds without isolation and fetches nothing
# unpinned.
$(STAMP): requirements.lock pyproject.toml $(DISTRIBUTIONS:%=%/pyproject.toml)
	@test -n "$(PYTHON)" || { echo "gavel: no Python 3.11 or 3.12 on PATH; install one or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "$$PREREQUISITES"
	$(PYTHON) -m venv --clear $(VENV)
	awk '/^[a-z]/ { keep = !/^durable-rules==/ } keep' requirements.lock > $(VENV)/wheels.txt
	$(PIP) install --require-hashes --only-binary :all: --requirement $(VENV)/wheels.txt
	$(DURABLE_RULES_FLAGS) $(PIP) install --no-cache-dir --require-hashes --use-pep517 --no-build-isolation --requirement requirements.lock
	$(PIP) install --no-deps --no-build-isolation $(DISTRIBUTIONS:%=--editable %)
	touch $(STAMP)
