# Everything a developer or a user runs. `make demo` and `make test` need Python 3.11 or 3.12, a C compiler and make; nothing else.
PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test serve check bench proto image lock

setup: $(STAMP)

# durable-rules ships as source; its setup.py drops the interpreter's flags, and without these it is built at -O0 and with
# undefined signed overflow. The wheels, its build tools among them, go first: then it builds without isolation and nothing is
# fetched unpinned.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 12) else "gavel: Python 3.11 or 3.12 is needed, this is " + sys.version.split()[0] + "; run make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	awk '/^[a-z]/ { keep = !/^durable-rules==/ } keep' requirements.lock > $(VENV)/wheels.txt
	$(PIP) --require-hashes --only-binary :all: --requirement $(VENV)/wheels.txt
	CPPFLAGS="-O2 -fwrapv" $(PIP) --require-hashes --no-build-isolation --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $(STAMP)

# Rewrites the lock file from pyproject.toml. Needs uv; only for those who change dependencies.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-annotate --extra dev pyproject.toml --output-file requirements.lock

# The googleapis protos (google/rpc/status.proto) come with googleapis-common-protos.
proto: $(STAMP)
	rm -rf proto/gen/python/gavel/v1 && mkdir -p proto/gen/python/gavel/v1 && touch proto/gen/python/gavel/__init__.py proto/gen/python/gavel/v1/__init__.py proto/gen/python/gavel/py.typed
	PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto -I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" --python_out=proto/gen/python --mypy_out=quiet:proto/gen/python proto/gavel/v1/*.proto
	PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto -I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" --grpc_python_out=proto/gen/python --mypy_grpc_out=quiet:proto/gen/python proto/gavel/v1/*_service.proto
