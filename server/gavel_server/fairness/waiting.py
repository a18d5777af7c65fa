"""Tells the transport that a call waits: for its turn, for an event, or for the caller's next message.

The native front lets the server work on a few forwarded calls at once (`server/front/turns.go`). A call that waits needs no place among
them. If it kept its place, a few callers that wait for nothing could occupy all places.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

_ANNOUNCE: Final[ContextVar[Callable[[], Awaitable[None]] | None]] = ContextVar("announce", default=None)


def announce_by(announce: Callable[[], Awaitable[None]]) -> None:
    """Let the waits of the current task, which serves one call, be announced by a function."""
    _ANNOUNCE.set(announce)


async def announce_wait() -> None:
    """Announce that the call of the current task begins to wait. Does nothing in other tasks."""
    announce = _ANNOUNCE.get()
    if announce is not None:
        await announce()
