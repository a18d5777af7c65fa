"""The frames between front and server: whatever the kernel makes of the bytes, the same frames come out, in order."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from gavel_server.front.link import HEADER, Link
from hypothesis import given
from hypothesis import strategies as st

Frame = tuple[int, int, bytes]
# Kind, number, content.
FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=12)
LARGE_BYTES = 17 * 1024 * 1024


def as_bytes(frames: list[Frame]) -> bytes:
    """Return what goes over the socket for the frames."""
    return b"".join(HEADER.pack(len(content), number, kind) + content for kind, number, content in frames)


def nothing() -> None:
    """Do nothing about an end that has gone."""


@given(FRAMES, st.data())
async def test_any_split_of_the_bytes_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    """However the stream of bytes is cut into pieces, the frames that come out are those that went in, as soon as they are complete."""
    stream = as_bytes(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    heard: list[Frame] = []
    link = Link(lambda *frame: heard.append(frame), nothing)

    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        link.data_received(stream[start:end])
        complete = [count for count in range(len(frames) + 1) if len(as_bytes(frames[:count])) <= end]
        assert frames[: complete[-1]] == heard

    assert frames == heard


class Ends:
    """Two links, connected by a socket pair, and what each heard."""

    def __init__(self) -> None:
        self.heard: tuple[asyncio.Queue[Frame], asyncio.Queue[Frame]] = asyncio.Queue(), asyncio.Queue()
        self.lost = asyncio.Event(), asyncio.Event()
        self.links = self._link(0), self._link(1)

    async def connect(self) -> None:
        """Connect the two."""
        loop = asyncio.get_running_loop()
        for link, end in zip(self.links, socket.socketpair(), strict=True):
            await loop.create_unix_connection(partial(_same, link), sock=end)

    async def close(self) -> None:
        """Hang up, and return when both ends have noticed."""
        self.links[0].close()
        for lost in self.lost:
            await lost.wait()

    def _link(self, side: int) -> Link:
        return Link(lambda *frame: self.heard[side].put_nowait(frame), self.lost[side].set)


def _same(link: Link) -> Link:
    return link


async def test_frames_cross_a_socket_in_order() -> None:
    """Empty, small and very large frames arrive whole and in order, in both directions at once; hanging up loses none of them."""
    ends = Ends()
    await ends.connect()
    frames = [(3, number, bytes([number % 256]) * (LARGE_BYTES if number == 50 else number % 7)) for number in range(100)]
    for frame in frames:
        ends.links[0].send(frame[0], frame[1], frame[2])
        ends.links[1].send(frame[0], frame[1], frame[2])
    assert frames == [await ends.heard[0].get() for _ in frames]
    ends.links[0].send(9, 0, b"last")
    await ends.close()
    assert [*frames, (9, 0, b"last")] == [await ends.heard[1].get() for _ in range(len(frames) + 1)]
    assert ends.heard[0].empty()


async def test_what_the_other_end_does_not_read_is_counted() -> None:
    """Bytes that wait for the other end are known, and none are counted once they have been read."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    link = Link(lambda *_: None, nothing)
    assert 0 == link.unsent_bytes
    await loop.create_unix_connection(lambda: link, sock=ours)
    link.send(0, 1, bytes(LARGE_BYTES))
    await asyncio.sleep(0)
    assert LARGE_BYTES // 2 < link.unsent_bytes <= LARGE_BYTES + HEADER.size
    theirs.setblocking(False)
    read = 0
    while read < LARGE_BYTES + HEADER.size:
        read += len(await loop.sock_recv(theirs, 1 << 20))
    assert 0 == link.unsent_bytes
    link.close()
    theirs.close()


async def test_frames_to_an_end_that_has_gone_are_lost_quietly() -> None:
    """Sending after the other end hung up does nothing, and `lost` was heard once."""
    ends = Ends()
    await ends.connect()
    await ends.close()
    ends.links[1].send(0, 1, b"too late")
    await asyncio.sleep(0)
    assert 0 == ends.links[1].unsent_bytes
    assert all(heard.empty() for heard in ends.heard)
