"""Wake-ups of the event loop by gRPC: without the setting below, a busy loop handles gRPC's events seconds late.

grpc.aio has a thread that takes gRPC's events, queues them, and writes a byte for each to a pair of sockets. In each pass, the loop reads
one byte and handles all queued events. A busy loop therefore leaves bytes behind. About 280 of them fill the pair, and the thread waits.
Linux lets it go on when three quarters have been read, 200 passes later. Until then no call arrives and no answer is sent.

Here each pass reads all the bytes that are there. That loses no event: an event is queued before its byte is written.
"""

from __future__ import annotations

import socket
from typing import Final

import grpc

# More than the pair holds.
_BYTES_AT_ONCE: Final = 64 * 1024


class _DrainedSocket(socket.socket):
    """The loop's end of the pair. grpc.aio asks for one byte and ignores what it gets."""

    def recv(self, _: int, flags: int = 0, /) -> bytes:
        return super().recv(_BYTES_AT_ONCE, flags)


def read_all_wakeups() -> None:
    """Start grpc.aio so that each pass of the loop reads all wake-ups. Call once, before anything of grpc.aio is used."""
    original = socket.socketpair

    def drained_pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = original()
        return _DrainedSocket(fileno=ours.detach()), theirs

    # grpc.aio offers no way to give it a pair. It makes one when it starts, and never again.
    socket.socketpair = drained_pair  # type: ignore[assignment]
    try:
        grpc.aio.init_grpc_aio()
    finally:
        socket.socketpair = original
