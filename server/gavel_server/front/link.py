"""One end of the socket pair between server and native front: reads frames, and writes those of one turn of the event loop together.

Many small calls arrive in one read of the socket. The frames that are left after a time slice wait for the next pass of the loop, so that
others run in between, such as the sequencers; the socket is not read meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from gavel_server.front.frames import HEADER
from gavel_server.process.time_slice import SLICE_SECONDS

OnFrame = Callable[[int, int, bytes], None]
"""Takes kind, number and content of a frame."""


class Link(asyncio.Protocol):
    """Calls `on_frame` for every frame, and `on_disconnect` once the other end has gone."""

    def __init__(self, on_frame: OnFrame, on_disconnect: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._unread = bytearray()
        self._unsent: list[bytes] = []
        self._is_waiting = False  # for the next pass of the loop, with frames that have been read
        self._transport: asyncio.Transport | None = None
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are, but do not inherit from it

    def data_received(self, data: bytes) -> None:
        """Pass on every frame that is complete."""
        self._unread += data
        if not self._is_waiting:
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass on complete frames until the time slice is over."""
        slice_end = self._clock() + SLICE_SECONDS
        unread = self._unread
        place = 0
        size = HEADER.size
        end = len(unread)
        self._is_waiting = False
        with memoryview(unread) as view:
            while place + size <= end:
                length, number, kind = HEADER.unpack_from(view, place)
                if place + size + length > end:
                    break
                if place and self._clock() >= slice_end:
                    self._is_waiting = True
                    break
                place += size
                self._on_frame(kind, number, bytes(view[place : place + length]))
                place += length
        del unread[:place]
        if self._is_waiting:
            self._set_reading(False)
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._pass_on()
        if not self._is_waiting:
            self._set_reading(True)

    def _set_reading(self, is_reading: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or transport.is_reading() == is_reading:
            return
        if is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Report that the other end has gone."""
        self._transport = None
        self._unread.clear()
        self._on_disconnect()
