"""The link between server and front: frames arrive whole and in order, however the kernel splits the bytes."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from gavel_server.front.frames import HEADER
from gavel_server.front.link import Link
from hypothesis import given
from hypothesis import strategies as st

Frame = tuple[int, int, bytes]
# Kind, number, content.
FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=12)
LARGE_BYTES = 17 * 1024 * 1024


def as_bytes(frames: list[Frame]) -> bytes:
    """Return the bytes of frames on the socket."""
    return b"".join(HEADER.pack(len(content), number, kind) + content for kind, number, content in frames)


def nothing() -> None:
    """Ignore the end of the connection."""


@given(FRAMES, st.data())
async def test_any_split_of_the_bytes_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    """Each frame arrives as soon as it is complete, however the bytes are cut."""
    stream = as_bytes(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    received: list[Frame] = []
    link = Link(lambda *frame: received.append(frame), nothing)

    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        link.data_received(stream[start:end])
        complete = [count for count in range(len(frames) + 1) if len(as_bytes(frames[:count])) <= end]
        assert frames[: complete[-1]] == received

    assert frames == received


class Ends:
    """Two links, connected by a socket pair, and the frames that each received."""

    def __init__(self) -> None:
        self.received: tuple[asyncio.Queue[Frame], asyncio.Queue[Frame]] = asyncio.Queue(), asyncio.Queue()
        self.disconnected = asyncio.Event(), asyncio.Event()
        self.links = self._link(0), self._link(1)

    async def connect(self) -> None:
        """Connect the two."""
        loop = asyncio.get_running_loop()
        for link, end in zip(self.links, socket.socketpair(), strict=True):
            await loop.create_unix_connection(partial(_same, link), sock=end)

    async def close(self) -> None:
        """Close the first end, and return once both ends are closed."""
        self.links[0].close()
        for disconnected in self.disconnected:
            await disconnected.wait()

    def _link(self, side: int) -> Link:
        return Link(lambda *frame: self.received[side].put_nowait(frame), self.disconnected[side].set)


def _same(link: Link) -> Link:
    return link


async def test_frames_cross_a_socket_in_order() -> None:
    """Empty, small and very large frames arrive in order, in both directions at once; closing an end loses none of them."""
    ends = Ends()
    await ends.connect()
    frames = [(3, number, bytes([number % 256]) * (LARGE_BYTES if number == 50 else number % 7)) for number in range(100)]
    for frame in frames:
        ends.links[0].send(frame[0], frame[1], frame[2])
        ends.links[1].send(frame[0], frame[1], frame[2])
    assert frames == [await ends.received[0].get() for _ in frames]
    ends.links[0].send(9, 0, b"last")
    await ends.close()
    assert [*frames, (9, 0, b"last")] == [await ends.received[1].get() for _ in range(len(frames) + 1)]
    assert ends.received[0].empty()


async def test_frames_after_a_disconnect_are_dropped() -> None:
    """Sending after the other end has gone does nothing."""
    ends = Ends()
    await ends.connect()
    await ends.close()
    ends.links[1].send(0, 1, b"too late")
    await asyncio.sleep(0)
    assert all(received.empty() for received in ends.received)
