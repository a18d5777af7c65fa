"""Queues that are fair between callers."""

from __future__ import annotations

from collections import Counter

import pytest
from gavel_server.fairness.fair_queue import QUANTUM, UNIT_BYTES, FairQueue
from hypothesis import given
from hypothesis import strategies as st

CALLERS = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:1", "unix:", ""]
BYTES_MAX = 1 << 30


def offer(queue: FairQueue[str], caller: str, size_bytes: int = 0) -> list[str] | None:
    """Add an item if there is room; return the items that it displaces."""
    displaced = queue.make_room(caller)
    if displaced is not None:
        queue.add(caller, caller, size_bytes)
    return displaced


def test_lone_caller_may_fill_a_queue() -> None:
    """A lone caller may use the whole queue, and displaces nothing of its own."""
    queue: FairQueue[str] = FairQueue(100, BYTES_MAX)
    assert [[]] * 100 + [None] * 10 == [offer(queue, "a:1") for _ in range(110)]


@pytest.mark.parametrize("connections", [1, 40, 500])
def test_greedy_callers_leave_room(connections: int) -> None:
    """However many connections of however many hosts fill a queue, another connection of any host finds room, up to its share."""
    for hosts in (1, 3):
        queue: FairQueue[str] = FairQueue(10_000, BYTES_MAX)
        for port in range(connections):
            for host in range(hosts):
                for _ in range(10_000 // connections):
                    offer(queue, f"10.0.0.{host}:{port}")
        for caller in ("10.0.0.0:9999", "10.1.1.1:1"):
            share = 10_000 // hosts // (connections + 1) if caller.startswith("10.0") else 10_000 // (hosts + 1)
            assert None not in [offer(queue, caller) for _ in range(share)]
            assert queue.count <= 10_000


def test_what_came_last_is_displaced() -> None:
    """A caller below its share displaces what came last of the largest caller; one that has its share is refused."""
    queue: FairQueue[str] = FairQueue(10, BYTES_MAX)
    for number in range(8):
        queue.add("a:1", f"a{number}", 0)
    for number in range(2):
        queue.add("b:1", f"b{number}", 0)
    for number in range(3):
        assert [f"a{7 - number}"] == queue.make_room("b:1")
        queue.add("b:1", f"b{number}", 0)
    assert queue.make_room("b:1") is None
    assert ["a0", "a1", "a2", "a3", "a4"] == [item for item in (queue.take() for _ in range(10)) if item.startswith("a")]


def test_bytes_are_shared() -> None:
    """A caller of large items uses up its share of the bytes, not that of others."""
    queue: FairQueue[str] = FairQueue(10_000, 100)
    assert [[]] * 11 + [None] * 9 == [offer(queue, "a:1", 10) for _ in range(20)]
    assert ["a:1"] * 6 == offer(queue, "b:1", 10)
    assert 60 == queue.size_bytes


def test_turns() -> None:
    """Hosts take turns, and the connections of a host among themselves, each with a few items."""
    queue: FairQueue[str] = FairQueue(1_000, BYTES_MAX)
    callers = ("a:1", "a:2", "a:3", "b:1")
    for caller in callers:
        for _ in range(100):
            queue.add(caller, caller, 0)
    turns = Counter(queue.take() for _ in range(24 * QUANTUM))
    assert {"b:1": 12 * QUANTUM, **dict.fromkeys(("a:1", "a:2", "a:3"), 4 * QUANTUM)} == dict(turns)


def test_large_items_cost_more() -> None:
    """A caller of large items gets as many bytes as others, not as many items."""
    queue: FairQueue[str] = FairQueue(1_000, BYTES_MAX)
    for _ in range(100):
        queue.add("a:1", "large", 8 * QUANTUM * UNIT_BYTES)
        queue.add("b:1", "small", 0)
    turns = Counter(queue.take() for _ in range(90))
    assert 80 <= turns["small"]
    assert 2 <= turns["large"]


def test_lone_caller_owes_nothing() -> None:
    """A caller that had the queue for itself takes equal turns with one that joins."""
    queue: FairQueue[str] = FairQueue(10_000, BYTES_MAX)
    for _ in range(1_000):
        queue.add("a:1", "a", 0)
    for _ in range(500):
        queue.take()
    for _ in range(200):
        queue.add("b:1", "b", 0)
    turns = Counter(queue.take() for _ in range(20 * QUANTUM))
    assert {"a": 10 * QUANTUM, "b": 10 * QUANTUM} == dict(turns)


def test_what_was_put_back_has_no_turn_before_others() -> None:
    """A caller that joins after a batch of another one waits for a turn of it, not for all that comes back from the batch."""
    queue: FairQueue[str] = FairQueue(10_000, BYTES_MAX)
    for _ in range(100):
        queue.add("a:1", "a", 0)
    batch = [queue.take() for _ in range(64)]
    queue.add("b:1", "b", 0)
    for item in batch:
        queue.put_back("a:1", item, 0)
    assert "b" in [queue.take() for _ in range(QUANTUM + 1)]


def test_a_caller_that_comes_back_has_the_next_turn() -> None:
    """Addresses whose only items come back are served before those that joined meanwhile, in their order."""
    queue: FairQueue[str] = FairQueue(10_000, BYTES_MAX)
    callers = ["a:1", "b:1", "d:1"]
    for caller in callers:
        queue.add(caller, caller, 0)
    batch = [queue.take() for _ in callers]
    for _ in range(100):
        queue.add("c:1", "c:1", 0)
    for caller in reversed(batch):
        queue.put_back(caller, caller, 0)
    assert [*batch, "c:1"] == [queue.take() for _ in range(4)]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(CALLERS), st.integers(0, 10 * UNIT_BYTES)),
        st.tuples(st.just("take"), st.just(""), st.integers(1, 10)),
        st.tuples(st.just("displace"), st.sampled_from(CALLERS), st.just(0)),
        st.tuples(st.just("put back"), st.just(""), st.integers(1, 5)),
    ),
    max_size=200,
)


@given(ACTIONS)
def test_nothing_is_lost_or_reordered(actions: list[tuple[str, str, int]]) -> None:
    """After any changes of the queue each item comes out once, those of a caller in order, and the counts are right."""
    queue: FairQueue[tuple[str, int, int]] = FairQueue(10, 20 * UNIT_BYTES)
    items: list[tuple[str, int, int]] = []
    lost: list[tuple[str, int, int]] = []
    added = 0
    for action, caller, number in actions:
        if action == "add":
            queue.add(caller, (caller, added, number), number)
            added += 1
        elif action == "displace":
            displaced = queue.make_room(caller) or []
            lost += displaced
        elif action == "take":
            items += [queue.take() for _ in range(min(number, queue.count))]
        else:
            for item in reversed(items[-number:]):
                queue.put_back(item[0], item, item[2])
            del items[-number:]
    items += [queue.take() for _ in range(queue.count)]
    assert (0, 0) == (queue.count, queue.size_bytes)
    assert list(range(added)) == sorted(number for _, number, _ in items + lost)
    for caller in CALLERS:
        numbers = [number for owner, number, _ in items if owner == caller]
        assert sorted(numbers) == numbers
    with pytest.raises(IndexError):
        queue.take()
