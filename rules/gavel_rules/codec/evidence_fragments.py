"""Fragments of a Decision that name its evidence.

The fields of a PinnedFact depend on the event alone, except for `fresh_until` and `policy_ids`. They are encoded once, when the event is
recorded, and stored with the evidence: an approval pins half a dozen facts, and one fact may be pinned by many decisions.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.decision_pb2 import AbsentFact, Decision, PinnedFact

from gavel_rules.codec.fields import Field

_PINNED_FACT: Final = Field(Decision, "pinned_facts")
_KEY: Final = Field(PinnedFact, "key")
_SUBJECT: Final = Field(PinnedFact, "subject")
_EVENT_ID: Final = Field(PinnedFact, "event_id")
_SEQUENCE_NUMBER: Final = Field(PinnedFact, "sequence_number")
_TRUST_TIER: Final = Field(PinnedFact, "trust_tier")
_FRESH_UNTIL: Final = Field(PinnedFact, "fresh_until")
_EVIDENCE_HASH: Final = Field(PinnedFact, "evidence_hash")
_POLICY_ID: Final = Field(PinnedFact, "policy_ids")

_ABSENT_FACT: Final = Field(Decision, "absent_facts")
_ABSENT_KEY: Final = Field(AbsentFact, "key")
_ABSENT_SUBJECT: Final = Field(AbsentFact, "subject")
_ABSENT_POLICY_ID: Final = Field(AbsentFact, "policy_ids")


def encode_pin(key: str, subject: str, event_id: str, sequence_number: int, trust_tier: int, evidence_hash: str) -> bytes:
    """Encode the fields of a PinnedFact that depend on the event alone."""
    # Concatenate with `a = a + b`: docs/performance.md#string-concatenation.
    origin = _EVENT_ID.text(event_id) + _SEQUENCE_NUMBER.number(sequence_number) + _TRUST_TIER.number(trust_tier)
    pin = _KEY.text(key) + _SUBJECT.text(subject) + origin
    return pin + _EVIDENCE_HASH.text(evidence_hash) if evidence_hash else pin


def decode_pin(pin: bytes) -> PinnedFact:
    """Parse an encoded pin; `fresh_until` and `policy_ids` are unset."""
    return PinnedFact.FromString(pin)


def encode_pinned_fact(pin: bytes, fresh_until_ms: int, policy_ids: list[str]) -> bytes:
    """Encode a pinned fact of a decision from its pin. Empty `policy_ids` stand for all rule sets consulted."""
    fact = pin + _FRESH_UNTIL.timestamp(fresh_until_ms)
    for policy_id in policy_ids:
        fact = fact + _POLICY_ID.text(policy_id)
    return _PINNED_FACT.content(fact)


def encode_absent_fact(key: str, subject: str, policy_ids: list[str]) -> bytes:
    """Encode an absent optional fact of a decision. Empty `policy_ids` stand for all rule sets consulted."""
    fact = _ABSENT_KEY.text(key) + _ABSENT_SUBJECT.text(subject)
    for policy_id in policy_ids:
        fact = fact + _ABSENT_POLICY_ID.text(policy_id)
    return _ABSENT_FACT.content(fact)
