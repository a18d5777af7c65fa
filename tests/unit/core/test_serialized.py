"""Fields that are written as bytes are those that protobuf reads."""

from __future__ import annotations

from gavel.v1.decision_pb2 import Decision, PinnedFact
from gavel_rules.events import TIME_MS_MAX, timestamp
from gavel_rules.serialized import Field
from hypothesis import given
from hypothesis import strategies as st

TIMES_MS = st.integers(0, TIME_MS_MAX)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**63 - 1))
def test_texts_and_numbers_are_read_as_written(value: str, number: int) -> None:
    """Texts of any length and alphabet, and numbers, come out as they went in, and their lengths are told."""
    parts: list[bytes] = []
    length = Field(PinnedFact, "subject").text(parts, value) + Field(PinnedFact, "sequence_number").number(parts, number)
    written = b"".join(parts)
    assert PinnedFact(subject=value, sequence_number=number) == PinnedFact.FromString(written)
    assert len(written) == length


@given(TIMES_MS, TIMES_MS)
def test_a_time_takes_the_place_of_another(before_ms: int, at_ms: int) -> None:
    """A Timestamp is read as written, whichever time its field had before."""
    parts: list[bytes] = []
    length = Field(PinnedFact, "fresh_until").moment(parts, at_ms)
    written = b"".join(parts)
    pinned = PinnedFact(fresh_until=timestamp(before_ms))
    pinned.MergeFromString(written)
    assert PinnedFact(fresh_until=timestamp(at_ms)) == pinned
    assert len(written) == length


@given(st.integers(0, 300))
def test_a_message_is_as_long_as_its_head_says(length: int) -> None:
    """The head of a message fits its content, also where the length needs two bytes and the field's number as well."""
    pinned = PinnedFact(subject="s" * length).SerializeToString()
    written = Field(Decision, "pinned_facts").head(len(pinned)) + pinned
    assert Decision(pinned_facts=[PinnedFact(subject="s" * length)]) == Decision.FromString(written)
