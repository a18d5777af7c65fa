"""Which build of Gavel this process runs: with the hot path compiled to machine code, or all of it interpreted.

Both decide alike; only speed differs. An operator sees it in the first line of the server's log and in `gavel --version`.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"

# Stands for all that is compiled: the libraries are installed together or not at all.
_HOT: Final = "gavel_rules.decider"


def build() -> str:
    """Return COMPILED or INTERPRETED, by where the decider is imported from."""
    specification = find_spec(_HOT)
    origin = specification.origin if specification is not None else None
    return COMPILED if origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES)) else INTERPRETED
