"""Fields that are written as bytes are those that protobuf reads."""

from __future__ import annotations

from gavel.v1.common_pb2 import TrustTier
from gavel.v1.decision_pb2 import AbsentFact, Decision, PinnedFact
from gavel_rules.events import TIME_MS_MAX, timestamp
from gavel_rules.pins import absent, pin, pinned
from gavel_rules.serialized import Field
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES_MS = st.one_of(st.integers(0, TIME_MS_MAX), st.integers(-(2**62), 2**62))


@given(TEXTS, st.integers(-(2**63), 2**63 - 1))
def test_texts_and_numbers_are_read_as_written(value: str, number: int) -> None:
    """Texts of any length and alphabet, and numbers, come out as they went in."""
    written = Field(PinnedFact, "subject").text(value) + Field(PinnedFact, "sequence_number").number(number)
    assert PinnedFact(subject=value, sequence_number=number) == PinnedFact.FromString(written)


@given(TIMES_MS, TIMES_MS)
def test_a_time_takes_the_place_of_another(before_ms: int, at_ms: int) -> None:
    """A Timestamp is read as written, whichever time its field had before."""
    pinned = PinnedFact(fresh_until=timestamp(before_ms))
    pinned.MergeFromString(Field(PinnedFact, "fresh_until").moment(at_ms))
    assert PinnedFact(fresh_until=timestamp(at_ms)) == pinned


@given(st.integers(0, 300))
def test_a_message_is_as_long_as_it_says(length: int) -> None:
    """A message is read as written, also where its length needs two bytes and the field's number as well."""
    content = PinnedFact(subject="s" * length)
    written = Field(Decision, "pinned_facts").message(content.SerializeToString())
    assert Decision(pinned_facts=[content]) == Decision.FromString(written)


@given(TEXTS, TEXTS, st.integers(1, 2**53), st.sampled_from(TrustTier.values()), TEXTS, TIMES_MS, st.lists(TEXTS, max_size=2))
def test_pins_are_what_they_say(
    key: str, subject: str, number: int, trust_tier: TrustTier.ValueType, evidence_hash: str, fresh_until_ms: int, policy_ids: list[str]
) -> None:
    """A decision that takes in evidence as bytes names just that: with whose it is, and for whom it speaks or is absent."""
    decision = Decision.FromString(
        pinned(pin(key, subject, "e", number, trust_tier, evidence_hash), fresh_until_ms, policy_ids) + absent(key, subject, policy_ids)
    )
    expected = Decision(absent_facts=[AbsentFact(key=key, subject=subject, policy_ids=policy_ids)])
    fact = expected.pinned_facts.add(key=key, subject=subject, event_id="e", sequence_number=number, evidence_hash=evidence_hash)
    fact.trust_tier = trust_tier
    fact.fresh_until.CopyFrom(timestamp(fresh_until_ms))
    fact.policy_ids.extend(policy_ids)
    assert expected == decision
