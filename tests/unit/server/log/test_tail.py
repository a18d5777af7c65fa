"""The newest events of a log in memory, for those who follow it."""

from __future__ import annotations

from contextlib import ExitStack

from gavel_server.log import Entry
from gavel_server.log.protocol import empty_head
from gavel_server.log.tail import RECORD_BYTES, LogTail, TailBudget
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entries import entries_after, head_of


def grow(log: list[Entry], sizes: list[int]) -> list[Entry]:
    """Add events with envelopes of about these sizes to a log; return them."""
    added: list[Entry] = []
    for size in sizes:
        head = head_of(log) if log else empty_head("default")
        log.extend(entries_after(head, 1, "x" * size))
        added.append(log[-1])
    return added


def test_tails_share_a_budget() -> None:
    """The tails of all buses together keep no more than their budget; what one forgets, another may keep."""
    events = [grow([], [100] * 4), grow([], [100] * 4)]
    kept = sum(len(entry.envelope) + RECORD_BYTES for entry in events[0])
    budget = TailBudget(kept + kept // 2)
    first, second = LogTail(10 * kept, budget), LogTail(10 * kept, budget)
    with second.followed():
        with first.followed():
            first.add(events[0])
            second.add(events[1])
            assert [4, 2] == [len(tail.read(5 - size, 4, 9)) for tail, size in ((first, 4), (second, 2))]
            assert [] == second.read(2, 4, 9)
        second.add(grow(events[1], [100] * 3))
        assert events[1][2:] == second.read(3, 7, 9)


@given(
    st.lists(st.tuples(st.sampled_from(["add", "add", "add", "miss", "clear", "follow", "leave"]), st.integers(1, 5)), max_size=25),
    st.integers(0, 10 * RECORD_BYTES),
)
def test_a_tail_reads_like_its_log(steps: list[tuple[str, int]], bytes_max: int) -> None:
    """Whatever was added, missed or forgotten, a read gives consecutive events of the log from the first one asked for, or none."""
    log: list[Entry] = []
    tail = LogTail(bytes_max)
    following: list[ExitStack] = []
    for step, count in steps:
        if step == "follow":
            following.append(ExitStack())
            following[-1].enter_context(tail.followed())
        elif step == "leave" and following:
            following.pop().close()
        elif step == "clear":
            tail.clear()
        elif step in ("add", "miss"):
            added = grow(log, [10 * count] * count)
            if step == "add":
                tail.add(added)
        for first in range(1, len(log) + 1):
            read = tail.read(first, len(log), count)
            assert len(read) <= count
            assert log[first - 1 : first - 1 + len(read)] == read


def test_a_followed_tail_has_the_newest_events() -> None:
    """While somebody follows, the newest events are in memory, up to the bytes that are kept; else none is."""
    log: list[Entry] = []
    tail = LogTail(2_000 + 8 * RECORD_BYTES)
    tail.add(grow(log, [100] * 3))
    with tail.followed(), tail.followed():
        tail.add(grow(log, [100] * 5))
        assert log[3:] == tail.read(4, 8, 128)
        assert log[5:7] == tail.read(6, 7, 128)
        assert log[4:6] == tail.read(5, 8, 2)
        assert [] == tail.read(3, 8, 128)
        tail.add(grow(log, [100] * 20))
        assert log[20:] == tail.read(21, 28, 128)
        assert [] == tail.read(9, 28, 128)
    assert [] == tail.read(28, 28, 128)
