"""The version and the build of Gavel that this process runs: with the hot path compiled to machine code, or interpreted.

Both make the same decisions; only their speed differs. The first line of the server's log and `gavel --version` name the build.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

# The version of the three wheels, which are released together.
VERSION: Final = "0.1.0"
COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"

# One compiled module stands for all: the libraries are installed together or not at all.
_HOT_MODULE: Final = "gavel_rules.decider"


def build() -> str:
    """Return COMPILED or INTERPRETED, depending on the file that the decider is imported from."""
    specification = find_spec(_HOT_MODULE)
    origin = specification.origin if specification is not None else None
    return COMPILED if origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES)) else INTERPRETED
