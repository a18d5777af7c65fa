"""What goes over the socket pair between front and server: frames, gathered until the event loop comes round.

A frame is a header (length of the content, number of the call, kind) and its content. The front sends a call's request under
a number of its choice, the kind naming the method; the server answers under the same number, with the response or with a
google.rpc.Status. Neither side waits for the other: calls overtake each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Final, cast

HEADER: Final = Struct("<IIB")

# Of what both ends must agree on: frames, kinds, methods, and the arguments that a front is started with. Raise it with any change;
# server/front/ has it too, since a native front may have been built before the server that starts it.
PROTOCOL: Final = 1

# The methods that go over the link, by kind of frame.
METHODS: Final = ("SubmitProposal", "BatchSubmitProposals", "Preflight", "BatchPreflight", "StreamProposals")

# Kinds of the server's frames.
RESPONSE: Final = 0
STATUS: Final = 1
SERVE: Final = 2  # begin to answer calls
STOP: Final = 3  # end gracefully
PING: Final = 4  # say that you are alive

# Kinds of the front's frames that are no call.
PONG: Final = 253  # alive
BOUND: Final = 254  # content: the address
UNBOUND: Final = 255  # content: why the address cannot be bound

Received = Callable[[int, int, bytes], None]


class Link(asyncio.Protocol):
    """One end. `received` hears (kind, number, content) of every frame, `lost` that the other end has gone."""

    def __init__(self, received: Received, lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._unread = bytearray()
        self._outgoing: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def unsent_bytes(self) -> int:
        """How much waits for the other end to read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, kind: int, number: int, content: bytes) -> None:
        """Send a frame, together with all others of this turn of the event loop. Lost if the other end is."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += (HEADER.pack(len(content), number, kind), content)

    def close(self) -> None:
        """Send what is left, and hang up."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are, and do not say so

    def data_received(self, data: bytes) -> None:
        """Hand on every frame that is complete."""
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
                self._received(kind, number, bytes(view[place : place + length]))
                place += length
        del unread[:place]

    def connection_lost(self, error: Exception | None) -> None:
        """Say that the other end has gone."""
        self._transport = None
        self._lost()
