"""Python's checking allocator: it ends a program that writes beside an object or frees it wrongly, and the program says where it was."""

from __future__ import annotations

import os
from typing import Final

CHECKING: Final = {"PYTHONMALLOC": "debug", "PYTHONFAULTHANDLER": "1"}


def checks_of_build() -> dict[str, str]:
    """Return the variables with which tests start servers: only a compiled build can damage its memory, and the checks take time."""
    return dict(CHECKING) if os.environ.get("TEST_BUILD") == "compiled" else {}
