"""The fronts that tests run on: every one that is there, or those that TEST_FRONTS names, separated by commas.

`.ci/run` names both, so that the native one cannot be missing there unseen.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, cast, get_args

from gavel_server.front.programs import Front, native_program


def _fronts() -> tuple[Front, ...]:
    named = os.environ.get("TEST_FRONTS")
    if named:
        names = named.split(",")
        if not {*names} <= {*get_args(Front)}:
            raise ValueError(f"TEST_FRONTS is {named}; there are {' and '.join(get_args(Front))}")
        return tuple(cast(Front, name) for name in names)
    return ("native", "python") if native_program().is_file() else ("python",)


FRONTS: Final = _fronts()
# For tests to which it is one which front there is: the two passes of `make check`, on source and compiled, take different ones.
ANY_FRONT: Final = FRONTS[-1] if os.environ.get("TEST_BUILD") == "compiled" else FRONTS[0]


def is_front(process_id: int) -> bool:
    """Whether a process is a front, of either kind."""
    arguments = Path(f"/proc/{process_id}/cmdline").read_text().split("\0")
    return arguments[0] == str(native_program()) or "gavel_server.front.process" in arguments
