"""The server's end of the link: frames to plain functions, their answers to frames. No coroutine, no task, no gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from functools import partial

from gavel_server.errors import ServiceError
from gavel_server.front.link import BOUND, METHODS, PING, RESPONSE, SERVE, STATUS, STOP, UNBOUND, Link
from gavel_server.services.arbitration import Method


class Backend:
    """Answers the calls of one front. `connect` once."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = tuple(methods[name] for name in METHODS)
        self._link: Link | None = None
        self._serving = False
        self._heard = True
        self._bound: asyncio.Future[str | OSError] = asyncio.get_running_loop().create_future()

    async def connect(self, end: socket.socket) -> None:
        """Take the server's end of the socket pair."""
        _, self._link = await asyncio.get_running_loop().create_unix_connection(lambda: Link(self._received, self._lost), sock=end)

    async def address(self) -> str:
        """Return the address that the front has bound, once it has. Raises OSError: it cannot, or it ended."""
        result = await asyncio.shield(self._bound)
        if isinstance(result, OSError):
            raise result
        return result

    def serve(self) -> None:
        """Let the front answer calls."""
        self._serving = True
        self._send(SERVE, 0, b"")

    def ping(self) -> bool:
        """Ask the front for a sign of life; return whether it has given one, any frame, since it was last asked."""
        heard, self._heard = self._heard, False
        self._send(PING, 0, b"")
        return heard

    def stop(self) -> None:
        """Let the front end: at once if it has not answered calls yet, else once those under way have ended."""
        if self._serving:
            self._send(STOP, 0, b"")
        elif self._link is not None:
            self._link.close()

    def _send(self, kind: int, number: int, content: bytes) -> None:
        if self._link is not None:
            self._link.send(kind, number, content)

    def _received(self, kind: int, number: int, content: bytes) -> None:
        self._heard = True
        if kind < len(self._methods):
            self._methods[kind](content, partial(self._answer, number))
        elif kind == BOUND:
            self._settle(content.decode())
        elif kind == UNBOUND:
            self._settle(OSError(content.decode()))

    def _answer(self, number: int, result: bytes | ServiceError) -> None:
        if isinstance(result, ServiceError):
            self._send(STATUS, number, result.status().SerializeToString())
        else:
            self._send(RESPONSE, number, result)

    def _lost(self) -> None:
        self._link = None
        self._settle(OSError("the process that speaks gRPC ended"))

    def _settle(self, result: str | OSError) -> None:
        if not self._bound.done():
            self._bound.set_result(result)
