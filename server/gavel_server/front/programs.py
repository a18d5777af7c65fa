"""The programs that can be a server's front, and which of them is.

There are two that callers cannot tell apart: the one in Go (`server/front/`, made by `make front`) takes about a fifth of the
processor time for a call; the one in Python (`process`) is there wherever Gavel is. A server with a single processor is better off
without either (docs/decisions/0020-the-front.md, 0029-a-native-front.md).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final, Literal

from gavel_server.front.link import PROTOCOL

Front = Literal["native", "python"]
Choice = Literal["auto", "native", "python", "none"]

PROGRAM: Final = "gavel-front"


def native_program() -> Path:
    """Where the native front is, if it is there: beside the other programs of this environment."""
    return Path(sysconfig.get_path("scripts")) / PROGRAM


def chosen(choice: Choice) -> Front | None:
    """Return which front a setting comes to on this machine. Raises OSError: the native one was asked for and is not there."""
    if choice == "none" or (choice == "auto" and processors() == 1):
        return None
    if choice == "auto":
        return "native" if native_program().is_file() else "python"
    if choice == "native" and not native_program().is_file():
        raise OSError(
            f"there is no native front at {native_program()}: make it with `make front`, where Go is installed or can be "
            "fetched, or take the one in Python (--front python)"
        )
    return choice


def command(front: Front, descriptor: int, listen: str, inner: str) -> list[str]:
    """Return the command line of a front: its end of the socket pair, the address for callers, the server's own."""
    if front == "native":
        # Its first argument says what it will be spoken to in: it may be of another build.
        return [str(native_program()), str(PROTOCOL), str(descriptor), listen, inner]
    return [sys.executable, "-P", "-m", "gavel_server.front.process", str(descriptor), listen, inner]


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
