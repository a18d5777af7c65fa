"""The environment of child processes: they get the variables that they need, and no settings. Only those that read logs get secrets."""

from __future__ import annotations

import os
from typing import Final

# How programs are found, how text and time are written, and how the interpreter, the C library and Go's runtime are tuned and debugged.
_NAMES: Final = frozenset({"PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG"})
_NAMES_PYTHON: Final = frozenset({"PYTHONPATH", "PYTHONMALLOC", "PYTHONFAULTHANDLER", "PYTHONHASHSEED"})
_NAMES_GO: Final = frozenset({"GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GODEBUG"})
_PREFIXES: Final = ("LC_", "MALLOC_")
# Where the libraries of PostgreSQL and of object stores find addresses, credentials and trusted authorities.
_NAMES_STORES: Final = frozenset({"HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_PREFIXES_STORES: Final = ("PG", "AWS_", "FSSPEC_")


def child_environment() -> dict[str, str]:
    """Return the environment for a child process."""
    return {name: value for name, value in os.environ.items() if name in _NAMES | _NAMES_PYTHON | _NAMES_GO or name.startswith(_PREFIXES)}


def log_reader_environment() -> dict[str, str]:
    """Return the environment for a child process that opens the log and its archive as its server does."""
    stores = {name: value for name, value in os.environ.items() if name in _NAMES_STORES or name.startswith(_PREFIXES_STORES)}
    return {**child_environment(), **stores}
