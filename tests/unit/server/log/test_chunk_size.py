"""The number of events that a read of the log asks for."""

from __future__ import annotations

import pytest
from gavel_server.log import Record
from gavel_server.log.chunk_size import CHUNK_BYTES, FIRST_EVENTS, ChunkSize
from hypothesis import given
from hypothesis import strategies as st


def chunk(*sizes: int) -> list[Record]:
    """Return events of these sizes."""
    return [Record(number, b"x" * size, b"") for number, size in enumerate(sizes, 1)]


@pytest.mark.parametrize(("size_bytes", "expected"), [(100, 128), (CHUNK_BYTES // 50, 50), (CHUNK_BYTES // 2, 2), (CHUNK_BYTES * 2, 1)])
def test_chunks_of_equal_events(size_bytes: int, expected: int) -> None:
    """Chunks grow to the limit of events while these are small, and to the limit of bytes otherwise."""
    size = ChunkSize(128)
    for _ in range(10):
        size.learn(chunk(size_bytes, size_bytes))
    assert expected == size.events


@given(st.lists(st.sampled_from([0, 700, 70_000, CHUNK_BYTES]), max_size=200))
def test_chunks_grow_slowly_and_shrink_at_once(sizes: list[int]) -> None:
    """A chunk has at most twice the events of the one before, and after a large event as many of its size as fit."""
    size = ChunkSize(128)
    read = 0
    while read < len(sizes):
        before = size.events
        got = sizes[read : read + before]
        read += len(got)
        size.learn(chunk(*got))
        assert 1 <= size.events <= min(2 * before, 128)
        assert size.events == 1 or size.events * max(got) <= CHUNK_BYTES


def test_the_first_chunk_is_small() -> None:
    """Nothing is known of the first events, so few are read."""
    assert (FIRST_EVENTS, 4) == (ChunkSize(128).events, ChunkSize(4).events)
