"""Which of the two transports serves: the native front, or the server's own grpc.aio (docs/decisions/0031-two-transports.md).

The native front (`server/front/`, in Go) is a program beside the environment's others; `make front` builds it, and compiled wheels carry
it. On a machine with one processor the two processes would take turns, so `auto` takes grpc.aio there.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Final, Literal

from gavel_server.front.frames import PROTOCOL

FrontSetting = Literal["auto", "native", "none"]

PROGRAM: Final = "gavel-front"


def native_program() -> Path:
    """Return where the native front is installed, whether it exists or not: the environment's directory of programs."""
    return Path(sysconfig.get_path("scripts")) / PROGRAM


def select_program(setting: FrontSetting) -> Path | None:
    """Return the front to start; None: the server speaks gRPC itself.

    Raises OSError if `setting` is native and the program does not exist.
    """
    program = native_program()
    if setting == "none" or (setting == "auto" and (processors() == 1 or not program.is_file())):
        return None
    if not program.is_file():
        raise OSError(
            f"there is no native front at {program}: build it with `make front`, which needs Go or a network to fetch it from, "
            "or serve without a front (--front none)"
        )
    return program


def command(program: Path, descriptor: int, listen: str, inner: str) -> list[str]:
    """Return the front's command line: protocol, its end of the socket pair, the public address, the server's private address."""
    # The protocol comes first: a program of another build checks it and refuses to run.
    return [str(program), str(PROTOCOL), str(descriptor), listen, inner]


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
