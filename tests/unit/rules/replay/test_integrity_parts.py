"""Parts of a log that are checked apart: together they are as intact as the log."""

from __future__ import annotations

from collections.abc import Sequence

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.replay import DivergedError, Integrity, IntegrityPart, IntegrityStart, are_joined
from gavel_server.log import Record
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.driver import BUS, WEEK_MS
from tests.support.entries import rechain
from tests.support.histories.story import play_story

RECORDS = play_story().records


def check(records: Sequence[Record], first: int, last: int) -> IntegrityPart:
    """Check the events from `first` to `last` of a log as a part."""
    start = None
    if first > 1:
        before = records[first - 2]
        recorded_at_ms = milliseconds(Envelope.FromString(before.envelope).recorded_at)
        start = IntegrityStart(before.sequence_number, before.chain_hash, recorded_at_ms, WEEK_MS)
    integrity = Integrity(BUS, start)
    for record in records[first - 1 : last]:
        integrity.feed(record.sequence_number, record.envelope, record.chain_hash)
    return integrity.part


def are_parts_intact(records: Sequence[Record], cuts: Sequence[int]) -> bool:
    """Check a log in parts that end at the cuts."""
    ends = sorted({*cuts, len(records)})
    return are_joined([check(records, begin + 1, end) for begin, end in zip([0, *ends], ends, strict=False)])


@settings(max_examples=40)
@given(st.lists(st.integers(1, len(RECORDS) - 1), max_size=4))
def test_an_intact_log_is_intact_in_parts(cuts: list[int]) -> None:
    """Wherever a log is cut, its parts are intact together."""
    assert are_parts_intact(RECORDS, cuts)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["repeat", "cause"]), st.lists(st.integers(1, len(RECORDS) - 1), max_size=3))
def test_a_fault_across_parts_is_found(choice: int, fault: str, cuts: list[int]) -> None:
    """An event_id that an earlier part has, and a cause that no earlier event is, are found wherever the log is cut."""
    envelopes = [Envelope.FromString(record.envelope) for record in RECORDS]
    number = 2 + choice % (len(envelopes) - 1)
    if fault == "repeat":
        envelopes[number - 1].event_id = envelopes[choice % (number - 1)].event_id
    else:
        envelopes[number - 1].causation_id = envelopes[-1].event_id if number < len(envelopes) else "none"
    records = rechain(BUS, envelopes)
    try:
        is_intact = are_parts_intact(records, cuts)
    except DivergedError:
        is_intact = False  # within a part
    assert not is_intact
