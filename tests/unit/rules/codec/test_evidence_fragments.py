"""Evidence fragments parse as the messages that they stand for."""

from __future__ import annotations

from gavel.v1.common_pb2 import TrustTier
from gavel.v1.decision_pb2 import AbsentFact, Decision, PinnedFact
from gavel_rules.codec.evidence_fragments import decode_pin, encode_absent_fact, encode_pin, encode_pinned_fact
from gavel_rules.events.timestamps import TIME_MS_MAX, timestamp
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES_MS = st.one_of(st.integers(0, TIME_MS_MAX), st.integers(-(2**62), 2**62))


@given(TEXTS, TEXTS, st.integers(1, 2**53), st.sampled_from(TrustTier.values()), TEXTS, TIMES_MS, st.lists(TEXTS, max_size=2))
def test_pinned_fact(
    key: str, subject: str, number: int, trust_tier: TrustTier.ValueType, evidence_hash: str, fresh_until_ms: int, policy_ids: list[str]
) -> None:
    """A pinned fact has the fields of its pin, its freshness and its policies."""
    pin = encode_pin(key, subject, "e", number, trust_tier, evidence_hash)
    expected = PinnedFact(
        key=key, subject=subject, event_id="e", sequence_number=number, trust_tier=trust_tier, evidence_hash=evidence_hash
    )
    assert expected == decode_pin(pin)
    expected.fresh_until.CopyFrom(timestamp(fresh_until_ms))
    expected.policy_ids.extend(policy_ids)
    assert Decision(pinned_facts=[expected]) == Decision.FromString(encode_pinned_fact(pin, fresh_until_ms, policy_ids))


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=2))
def test_absent_fact(key: str, subject: str, policy_ids: list[str]) -> None:
    """An absent fact has its key, subject and policies."""
    expected = Decision(absent_facts=[AbsentFact(key=key, subject=subject, policy_ids=policy_ids)])
    assert expected == Decision.FromString(encode_absent_fact(key, subject, policy_ids))


def test_concatenation() -> None:
    """Fragments that follow one another parse as one decision with all facts."""
    pin = encode_pin("order.status", "order/1", "e", 7, 1, "")
    decision = Decision.FromString(encode_pinned_fact(pin, 1_000, []) + encode_absent_fact("order.score", "order/1", []))
    assert ["order.status"] == [fact.key for fact in decision.pinned_facts]
    assert ["order.score"] == [fact.key for fact in decision.absent_facts]
