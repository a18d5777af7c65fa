"""The library of the Rete engine, durable-rules, if it was compiled with the flags that it needs.

durable-rules ships as source, and its setup.py drops the interpreter's compiler flags. A plain `pip install` therefore compiles it without
optimisation and without -fwrapv, although its hashes rely on signed overflow, which C leaves undefined without that flag
(docs/dependencies.md). Gavel's wheels bring a library of their own, in this folder; in a development environment `make setup` builds it.
Both builds pass -frecord-gcc-switches, with which the compiler writes its flags into the library. Any other library is refused.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gavel_rules.errors import EngineBuildError

REMEDY: Final = (
    'CPPFLAGS="-O2 -fwrapv -frecord-gcc-switches" pip install --force-reinstall --no-deps --no-cache-dir '
    "--no-binary durable-rules durable-rules==2.0.28"
)

_LIBRARY: Final = "durable_rules_engine"
_FLAGS: Final = (b"-O2", b"-fwrapv")


def load() -> Any:
    """Return the library: the one in this folder, or else the installed one. Raises EngineBuildError."""
    for name in (f"gavel_rules.language.engines.{_LIBRARY}", _LIBRARY):
        specification = find_spec(name)
        if specification is None or specification.origin is None:
            continue
        content = Path(specification.origin).read_bytes()
        if not all(flag in content for flag in _FLAGS):
            raise EngineBuildError(
                f"{specification.origin} was compiled without -O2 -fwrapv, or does not record its flags; "
                f"without -fwrapv its hashes are undefined in C. Install it again: {REMEDY}"
            )
        return import_module(name)
    raise EngineBuildError(f"the Rete engine is not installed. Install it: {REMEDY}")


library: Final = load()
