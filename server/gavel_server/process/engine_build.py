"""Checks the compiler flags of durable-rules, the Rete engine.

durable-rules ships as source, and its setup.py drops the interpreter's compiler flags. A plain `pip install` therefore compiles it without
optimisation and without -fwrapv, although its hashes rely on signed overflow, which C leaves undefined without that flag
(docs/dependencies.md). Gavel's own builds pass the flags, and -frecord-gcc-switches, with which the compiler writes them into the library.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_LIBRARY: Final = "durable_rules_engine"
_PACKAGE: Final = "durable-rules"
_FLAGS: Final = (b"-O2", b"-fwrapv")


def engine_build_problem() -> str:
    """Return what is wrong with the installed engine's build, or ""."""
    specification = find_spec(_LIBRARY)
    if specification is None or specification.origin is None:
        return f"{_PACKAGE} is not installed"
    library = Path(specification.origin)
    content = library.read_bytes()
    if all(flag in content for flag in _FLAGS):
        return ""
    return f"{library} was compiled without -O2 -fwrapv, or does not record its flags; without -fwrapv its hashes are undefined in C"


def engine_build_remedy() -> str:
    """Return the command that installs the engine again, with the flags that it needs."""
    return (
        'CPPFLAGS="-O2 -fwrapv -frecord-gcc-switches" pip install --force-reinstall --no-deps --no-cache-dir '
        f"--no-binary {_PACKAGE} {_PACKAGE}=={version(_PACKAGE)}"
    )
