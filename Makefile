# Everything a developer or a user runs. `make demo` and `make test` need Python 3.11 or 3.12 with its headers, a C compiler and
# make; the packages come, pinned and hashed, from requirements.lock. Nothing needs root. The native front is made where Go can be had; nothing
# but `make front REQUIRED=1` insists on it.
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3; do \
	$$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$candidate && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# durable-rules ships as source, and its setup.py drops the interpreter's flags: without these it is built at -O0 and with undefined
# signed overflow. The last one records them in the library, where tests/unit/test_packaging.py reads them. Such a wheel is never
# taken from pip's cache (--no-cache-dir), which does not know with which flags it was built.
DURABLE_RULES_FLAGS := CPPFLAGS="-O2 -fwrapv -frecord-gcc-switches"
# Puts the compiled tree before what is installed.
COMPILED := PYTHONPATH="$(CURDIR)/build/compiled$${PYTHONPATH:+:$$PYTHONPATH}"
# Where `make proto` puts the generated code; .ci/contract generates elsewhere to compare.
GENERATED ?= proto/gen/python
# Arguments of `make bench`, e.g. BENCH="--gate --json build/bench.json".
BENCH ?=
COMPILE ?= true
UNIT_TEST_PROCESSES := $(shell count=$$(getconf _NPROCESSORS_ONLN); echo $$((count < 8 ? count + 1 : 8)))
# How much of `make fuzz`, and further arguments of it.
FUZZ_EVALUATIONS ?= 1000000
FUZZ ?=
GHZ_VERSION := v0.120.0
# The native front, and what it is made of. REQUIRED=1: that it cannot be made is a failure.
FRONT := $(BIN)/gavel-front
FRONT_SOURCES := $(wildcard server/front/*)
REQUIRED ?=
export REQUIRED
# Further arguments of the image build, e.g. IMAGE_FLAGS="--build-arg PIP_INDEX_URL=…".
IMAGE_FLAGS ?=

.PHONY: setup demo test test-compiled serve serve-compiled compiled front check bench soak proto schemas image wheels lock

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/gavel demo

serve: $(STAMP) front
	$(BIN)/gavel serve

# The same server, its hot path compiled: what an image runs. The first line of its log says which build it is.
serve-compiled: compiled front
	$(COMPILED) $(BIN)/gavel serve

# The hot path compiled by mypyc, as an importable tree in build/compiled; built again only when a source has changed.
compiled: $(STAMP)
	$(BIN)/python server/hatch_build.py

# The program in Go that speaks gRPC for the server (docs/decisions/0029-a-native-front.md). Without Go, or a network to fetch it from,
# this says so, and the server takes the front in Python.
front: $(FRONT)

$(FRONT): $(FRONT_SOURCES) | $(STAMP)
	server/front/tool build "$(CURDIR)/$@"

# The fast tests speak first; everything else under tests/ follows.
# Unit tests mostly compute: a process for each processor, and one for while others wait. The rest wait for servers: four, whatever
# the machine.
test: $(STAMP) front
	$(BIN)/pytest --quiet --numprocesses=$(UNIT_TEST_PROCESSES) tests/unit tests/contract
	$(BIN)/pytest --quiet --numprocesses=4 --dist=loadfile tests --ignore=tests/unit --ignore=tests/contract --ignore=tests/compiled

# The tests again, on the compiled build (tests/conftest.py makes sure that it is the one they run on), and what holds of both builds.
test-compiled: compiled front
	TEST_BUILD=compiled $(COMPILED) $(BIN)/pytest --quiet --numprocesses=$(UNIT_TEST_PROCESSES) tests/unit tests/contract
	TEST_BUILD=compiled $(COMPILED) $(BIN)/pytest --quiet --numprocesses=4 --dist=loadfile tests/compiled tests/scenarios tests/simulation tests/e2e

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	server/front/tool check
	.ci/contract
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-compiled

# The two rule engines against each other, on random documents and cases; a seed of an earlier run does the same again:
# FUZZ="--seed 123". The tests run a few thousand evaluations of it.
.PHONY: fuzz
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run --evaluations $(FUZZ_EVALUATIONS) $(FUZZ)

# Needs Go when ghz (the load generator) is not there yet.
bench: $(STAMP) compiled front build/ghz
	$(BIN)/python -m tests.load.bench --ghz build/ghz $(BENCH)

# What takes minutes: 2,000 versions deployed and put in force on one server, and 200,000 evaluations and 2,000 rule sets of the engines
# alone, with memory that must stay where it is.
soak: $(STAMP)
	$(BIN)/python -m tests.load.endurance
	$(BIN)/python -m tests.load.redeployments --cycles 2000

build/ghz:
	@command -v go >/dev/null || { echo "gavel: make bench needs ghz, and building ghz needs Go: install Go, or put a ghz $(GHZ_VERSION) at build/ghz" >&2; exit 1; }
	GOBIN="$(CURDIR)/build" go install github.com/bojand/ghz/cmd/ghz@$(GHZ_VERSION)

# The googleapis protos (google/rpc/status.proto) come with googleapis-common-protos.
PROTOC = PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto -I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
proto: $(STAMP)
	rm -rf $(GENERATED)/gavel && mkdir -p $(GENERATED)/gavel/v1
	touch $(GENERATED)/gavel/__init__.py $(GENERATED)/gavel/py.typed $(GENERATED)/gavel/v1/__init__.py
	$(PROTOC) --python_out=$(GENERATED) --mypy_out=quiet:$(GENERATED) proto/gavel/v1/*.proto
	$(PROTOC) --grpc_python_out=$(GENERATED) --mypy_grpc_out=quiet:$(GENERATED) proto/gavel/v1/*_service.proto

# What editors check rule sets and their tests by, made from the models that the compiler reads them with.
schemas: $(STAMP)
	mkdir -p rules/gavel_rules/schemas
	for name in rule-set test; do \
		$(BIN)/python -c "from gavel_rules.authoring.editor_schemas import generated_schema as made; print(made('$$name'), end='')" \
			> rules/gavel_rules/schemas/$$name.json || exit 1; done

# The container image gavel:latest, with whichever builder works here.
image:
	if docker info >/dev/null 2>&1; then docker build $(IMAGE_FLAGS) --tag gavel:latest .; \
	elif command -v buildah >/dev/null; then buildah build --format docker $(IMAGE_FLAGS) --tag gavel:latest .; \
	else echo "gavel: make image needs a running docker, or buildah" >&2; exit 1; fi

# Every locked package and Gavel itself as wheels, Gavel's hot path compiled; the image installs from them. COMPILE=false makes
# Gavel's wheel one of Python alone, for every platform.
wheels: $(STAMP) front
	rm -rf build/wheels
	$(DURABLE_RULES_FLAGS) $(PIP) wheel --no-cache-dir --require-hashes --use-pep517 --no-build-isolation --requirement requirements.lock --wheel-dir build/wheels
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=$(COMPILE) $(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheels .

# Rewrites the lock file from pyproject.toml. Needs uv; only for those who change dependencies.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-annotate --extra dev pyproject.toml --output-file requirements.lock

# What a machine may lack, said before anything is fetched.
define PREREQUISITES
import importlib.util, os, shlex, subprocess, sys, sysconfig
if not (3, 11) <= sys.version_info[:2] <= (3, 12):
    sys.exit("gavel: Python 3.11 or 3.12 is needed, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.11")
if importlib.util.find_spec("ensurepip") is None:
    sys.exit("gavel: this Python has no venv module; install it (Debian, Ubuntu: python3-venv)")
compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
command = [*compiler, "-I" + sysconfig.get_path("include"), "-fsyntax-only", "-x", "c", "-"]
try:
    said = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True)
except FileNotFoundError:
    sys.exit("gavel: the C compiler " + compiler[0] + " is not there; install it (Debian, Ubuntu: gcc), or name another one: make CC=clang")
if said.returncode:
    sys.exit("gavel: C code cannot be built for this Python; install its headers (Debian, Ubuntu: python3-dev). The compiler says: " + said.stderr)
endef
export PREREQUISITES

# The wheels, durable-rules' build tools among them, go first: it then builds without isolation, and nothing is fetched unpinned.
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "gavel: Python 3.11 or 3.12 is needed and not on PATH; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "$$PREREQUISITES"
	$(PYTHON) -m venv --clear $(VENV)
	awk '/^[a-z]/ { keep = !/^durable-rules==/ } keep' requirements.lock > $(VENV)/wheels.txt
	$(PIP) install --require-hashes --only-binary :all: --requirement $(VENV)/wheels.txt
	$(DURABLE_RULES_FLAGS) $(PIP) install --no-cache-dir --require-hashes --use-pep517 --no-build-isolation --requirement requirements.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $(STAMP)
