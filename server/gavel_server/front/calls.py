"""The calls of the hot path that wait for the server: each has a number, and hears the one frame that answers it.

What a caller who has gone would have heard is dropped; the server decides the proposal all the same, as it would have without a
front. Requests that wait are held in memory, so there is a limit to their bytes: beyond it calls are refused and may be repeated.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final

from gavel.v1 import error_pb2
from google.rpc.status_pb2 import Status

from gavel_server.errors import ServiceError
from gavel_server.front.link import RESPONSE, Link

# What the requests that wait for the server may hold in memory.
UNDER_WAY_BYTES_MAX: Final = 256 * 1024 * 1024
_NUMBERS: Final = 1 << 32


class Calls:
    """The calls under way on one link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[bytes | Status]] = {}
        self._bytes_under_way = 0

    async def make(self, kind: int, request: bytes) -> bytes | Status:
        """Send a request to the server; return its response, or with what status it was refused."""
        size = len(request)
        # The requests of callers who have gone wait as well, until the server has read them.
        if max(self._bytes_under_way, self._link.unsent_bytes) + size > UNDER_WAY_BYTES_MAX:
            problem = f"{UNDER_WAY_BYTES_MAX} bytes of requests wait for decisions; try again"
            return ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, problem).status()
        number = next(self._numbers) % _NUMBERS
        future: asyncio.Future[bytes | Status] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._bytes_under_way += size
        self._link.send(kind, number, request)
        try:
            return await future
        finally:
            self._bytes_under_way -= size
            del self._waiting[number]

    def answered(self, kind: int, number: int, content: bytes) -> None:
        """Hand an answer, a frame of kind RESPONSE or STATUS, to the call that waits for it, if one still does."""
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(content if kind == RESPONSE else Status.FromString(content))
