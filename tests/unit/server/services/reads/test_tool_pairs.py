"""Matching tool results to tool calls."""

from __future__ import annotations

from collections import Counter

import pytest
from gavel.v1 import event_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ToolPair
from gavel_server.services.reads.tool_pairs import tool_pairs
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

PAIRED = event_service_pb2.TOOL_PAIR_STATE_PAIRED
BY_NAME = event_service_pb2.TOOL_PAIR_STATE_PAIRED_BY_NAME
OPEN = event_service_pb2.TOOL_PAIR_STATE_OPEN
ORPHAN = event_service_pb2.TOOL_PAIR_STATE_ORPHAN_RESULT
MISMATCH = event_service_pb2.TOOL_PAIR_STATE_TOOL_MISMATCH
DUPLICATE = event_service_pb2.TOOL_PAIR_STATE_DUPLICATE_RESULT


def trace_of(*events: tuple[str, str, str]) -> list[Envelope]:
    """Return a trace of ("call" or "result", tool, execution_id); the n-th event's id is "n", counted from 1."""
    return [
        ParseDict(
            {"sequence_number": number, "event_id": str(number), f"tool_{kind}": {"tool_name": tool, "execution_id": execution_id}},
            Envelope(),
        )
        for number, (kind, tool, execution_id) in enumerate(events, 1)
    ]


def rows_of(pairs: list[ToolPair]) -> list[tuple[str, str, int]]:
    """Return call, result and state of each pair."""
    return [(pair.call_event_id, pair.result_event_id, pair.state) for pair in pairs]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # by execution_id, whatever the order; another tool is marked
        ([("call", "a", "x"), ("call", "a", "y"), ("result", "a", "x"), ("result", "b", "y")], [("1", "3", PAIRED), ("2", "4", MISMATCH)]),
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


def test_a_pair_names_both_tools_if_they_differ() -> None:
    """A result of another tool than its call is shown with both names."""
    (pair,) = tool_pairs(trace_of(("call", "a", "x"), ("result", "b", "x")))
    assert ("a", "b") == (pair.tool_name, pair.result_tool_name)


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
