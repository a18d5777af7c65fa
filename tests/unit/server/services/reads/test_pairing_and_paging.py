"""Two pure parts of the servicers: matching tool results to calls, and cutting listings into pages."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from gavel.v1 import event_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ToolPair
from gavel.v1.projection_service_pb2 import PendingDecision
from gavel_server.errors import ServiceError
from gavel_server.services.reads.paging import PAGE_BYTES_MAX, fill, page_of
from gavel_server.services.reads.tool_pairs import tool_pairs
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.services.world import raw

PAIRED = event_service_pb2.TOOL_PAIR_STATE_PAIRED
BY_NAME = event_service_pb2.TOOL_PAIR_STATE_PAIRED_BY_NAME
OPEN = event_service_pb2.TOOL_PAIR_STATE_OPEN
ORPHAN = event_service_pb2.TOOL_PAIR_STATE_ORPHAN_RESULT
DUPLICATE = event_service_pb2.TOOL_PAIR_STATE_DUPLICATE_RESULT


def trace_of(*events: tuple[str, str, str]) -> list[Envelope]:
    """Return a trace of ("call" or "result", tool, execution_id); the n-th event's id is "n", counted from 1."""
    return [
        raw(sequence_number=number, event_id=str(number), **{f"tool_{kind}": {"tool_name": tool, "execution_id": execution_id}})
        for number, (kind, tool, execution_id) in enumerate(events, 1)
    ]


def rows_of(pairs: list[ToolPair]) -> list[tuple[str, str, int]]:
    """Return call, result and state of each pair."""
    return [(pair.call_event_id, pair.result_event_id, pair.state) for pair in pairs]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # by execution_id, whatever the order and the tool's name
        ([("call", "a", "x"), ("call", "a", "y"), ("result", "a", "x"), ("result", "b", "y")], [("1", "3", PAIRED), ("2", "4", PAIRED)]),
        ([("result", "a", "x"), ("call", "a", "x")], [("2", "1", PAIRED)]),
        # without one, the nearest open call before it of the same tool
        ([("call", "a", ""), ("call", "a", ""), ("result", "a", "")], [("1", "", OPEN), ("2", "3", BY_NAME)]),
        ([("call", "a", ""), ("call", "b", ""), ("result", "a", "")], [("1", "3", BY_NAME), ("2", "", OPEN)]),
        ([("result", "a", ""), ("call", "a", "")], [("", "1", ORPHAN), ("2", "", OPEN)]),
        # only one of the two has an execution_id
        ([("call", "a", "x"), ("result", "a", "")], [("1", "2", BY_NAME)]),
        ([("call", "a", ""), ("result", "a", "x")], [("1", "2", BY_NAME)]),
        # both have one, and they differ: never paired by name
        ([("call", "a", "x"), ("result", "a", "y")], [("1", "", OPEN), ("", "2", ORPHAN)]),
        # an id takes precedence over a name
        ([("call", "a", "x"), ("result", "a", ""), ("result", "a", "x")], [("1", "3", PAIRED), ("", "2", ORPHAN)]),
        # a second result
        ([("call", "a", "x"), ("result", "a", "x"), ("result", "a", "x")], [("1", "2", PAIRED), ("1", "3", DUPLICATE)]),
        ([("call", "a", ""), ("result", "a", ""), ("result", "a", "")], [("1", "2", BY_NAME), ("", "3", ORPHAN)]),
        # a call that was recorded twice takes a result each
        ([("call", "a", "x"), ("call", "a", "x"), ("result", "a", "x"), ("result", "a", "x")], [("1", "3", PAIRED), ("2", "4", PAIRED)]),
        ([], []),
    ],
    ids=range(13),
)
def test_pairs(events: list[tuple[str, str, str]], expected: list[tuple[str, str, int]]) -> None:
    """Calls and results are paired as the contract defines, in the order in which pairs begin."""
    assert rows_of(tool_pairs(trace_of(*events))) == expected


EVENTS = st.lists(st.tuples(st.sampled_from(["call", "result"]), st.sampled_from("ab"), st.sampled_from(["", "", "x", "y"])), max_size=30)


@given(EVENTS)
def test_every_result_is_in_exactly_one_pair(events: list[tuple[str, str, str]]) -> None:
    """Every result is in exactly one pair; every call is open or answered once, with further results marked as duplicates."""
    trace = trace_of(*events)
    pairs = tool_pairs(trace)

    results = Counter(pair.result_event_id for pair in pairs if pair.result_event_id)
    assert results == Counter(event.event_id for event in trace if event.HasField("tool_result"))
    calls = Counter(pair.call_event_id for pair in pairs if pair.call_event_id and pair.state != DUPLICATE)
    assert calls == Counter(event.event_id for event in trace if event.HasField("tool_call"))
    for pair in pairs:
        assert bool(pair.call_event_id) == (pair.state != ORPHAN)
        assert bool(pair.result_event_id) == (pair.state != OPEN)


@given(st.lists(st.integers(0, PAGE_BYTES_MAX // 2), max_size=12), st.integers(1, 5))
def test_pages_hold_each_item_once(sizes: list[int], page_size: int) -> None:
    """Whatever the sizes of the items, the pages of a listing hold each item once, in order, within the page limit."""
    items = [PendingDecision(sequence_number=number, subject="x" * size) for number, size in enumerate(sizes, 1)]
    numbers: list[int] = []
    token = ""
    while True:
        page = page_of(page_size, token, ("items",), (int,))
        after = page.after[0] if page.after else 0
        following = [item for item in items if item.sequence_number > int(after)]
        items_of_page, token = asyncio.run(fill(page, following, lambda item: (item.sequence_number,)))
        assert len(items_of_page) <= page_size
        assert sum(item.ByteSize() for item in items_of_page) <= PAGE_BYTES_MAX
        numbers.extend(item.sequence_number for item in items_of_page)
        if not token:
            break
        assert items_of_page != []

    assert numbers == list(range(1, len(sizes) + 1))


@given(st.text())
def test_any_text_as_a_page_token(text: str) -> None:
    """Any text that is not a page token is refused as malformed, without an unexpected error."""
    if not text:
        return
    with pytest.raises(ServiceError, match="page_token"):
        page_of(0, text, ("items",), (int,))
