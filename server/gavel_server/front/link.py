"""One end of the socket pair between server and native front: reads frames, and writes those of one turn of the event loop together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from gavel_server.front.frames import HEADER

OnFrame = Callable[[int, int, bytes], None]
"""Takes kind, number and content of a frame."""


class Link(asyncio.Protocol):
    """Calls `on_frame` for every frame, and `on_disconnect` once the other end has gone."""

    def __init__(self, on_frame: OnFrame, on_disconnect: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._unread = bytearray()
        self._unsent: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._loop = asyncio.get_running_loop()

    def send(self, kind: int, number: int, content: bytes) -> None:
        """Send a frame, together with all others of this turn of the event loop. It is dropped if the other end has gone."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += (HEADER.pack(len(content), number, kind), content)

    def close(self) -> None:
        """Send what is left and close the socket."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transports are, but do not inherit from it

    def data_received(self, data: bytes) -> None:
        """Pass on every frame that is complete."""
        unread = self._unread
        unread += data
        place = 0
        size = HEADER.size
        end = len(unread)
        with memoryview(unread) as view:
            while place + size <= end:
                length, number, kind = HEADER.unpack_from(view, place)
                if place + size + length > end:
                    break
                place += size
                self._on_frame(kind, number, bytes(view[place : place + length]))
                place += length
        del unread[:place]

    def connection_lost(self, error: Exception | None) -> None:
        """Report that the other end has gone."""
        self._transport = None
        self._on_disconnect()
