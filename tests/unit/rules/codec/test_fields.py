"""Fields encoded by hand parse as protobuf's own."""

from __future__ import annotations

from gavel.v1.decision_pb2 import Decision, PinnedFact
from gavel_rules.codec.fields import Field
from gavel_rules.events.timestamps import TIME_MS_MAX, timestamp
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES_MS = st.one_of(st.integers(0, TIME_MS_MAX), st.integers(-(2**62), 2**62))


@given(TEXTS, st.integers(-(2**63), 2**63 - 1))
def test_texts_and_numbers_round_trip(value: str, number: int) -> None:
    """Texts of any length and alphabet, and numbers, come out as they went in."""
    written = Field(PinnedFact, "subject").text(value) + Field(PinnedFact, "sequence_number").number(number)
    assert PinnedFact(subject=value, sequence_number=number) == PinnedFact.FromString(written)


@given(TIMES_MS, TIMES_MS)
def test_time_replaces_an_earlier_one(before_ms: int, at_ms: int) -> None:
    """A Timestamp is read as written, whichever time its field had before."""
    pinned = PinnedFact(fresh_until=timestamp(before_ms))
    pinned.MergeFromString(Field(PinnedFact, "fresh_until").timestamp(at_ms))
    assert PinnedFact(fresh_until=timestamp(at_ms)) == pinned


@given(st.integers(0, 300))
def test_lengths_of_messages(length: int) -> None:
    """A message is read as written, also where its length needs two bytes and the field's number as well."""
    content = PinnedFact(subject="s" * length)
    written = Field(Decision, "pinned_facts").content(content.SerializeToString())
    assert Decision(pinned_facts=[content]) == Decision.FromString(written)
