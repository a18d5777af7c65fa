"""The transports that tests run on: the native front where it is built, and grpc.aio in the server's process ("none").

TEST_FRONTS overrides them, separated by commas. `.ci/run` names both: there a missing native front is a failure, not a skip.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, cast

from gavel_server.front.programs import FrontSetting, native_program

_KNOWN: Final = ("native", "none")


def _transports() -> tuple[FrontSetting, ...]:
    setting = os.environ.get("TEST_FRONTS")
    if not setting:
        return _KNOWN if native_program().is_file() else ("none",)
    names = setting.split(",")
    if not {*names} <= {*_KNOWN}:
        raise ValueError(f"TEST_FRONTS is {setting}; use {' or '.join(_KNOWN)}, or both, separated by a comma")
    return tuple(cast(FrontSetting, name) for name in names)


TRANSPORTS: Final = _transports()
# For tests of the front process; without the program they are skipped.
FRONTS: Final[tuple[FrontSetting, ...]] = tuple(transport for transport in TRANSPORTS if transport != "none")
# For tests that pass on either transport and run on one of them: a front where there is one.
ANY_FRONT: Final = TRANSPORTS[0]


def is_front(process_id: int) -> bool:
    """Report whether a process is a front."""
    arguments = Path(f"/proc/{process_id}/cmdline").read_text().split("\0")
    return arguments[0] == str(native_program())
