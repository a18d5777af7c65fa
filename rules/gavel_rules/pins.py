"""What decisions say of the evidence that they rest on, as bytes.

Of an event they always say the same, but for how long it is fresh: so that is made when the event is recorded, and kept with what
it says. One approval names half a dozen facts, and a fact may speak for many.

They are put together by `+` and not in place, which the compiler turns into one call of C only so.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.decision_pb2 import AbsentFact, Decision, PinnedFact

from gavel_rules.serialized import Field

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


def pin(key: str, subject: str, event_id: str, sequence_number: int, trust_tier: int, evidence_hash: str) -> bytes:
    """Return what every PinnedFact says of an event that states a key of a subject."""
    place = _EVENT_ID.text(event_id) + _SEQUENCE_NUMBER.number(sequence_number) + _TRUST_TIER.number(trust_tier)
    content = _KEY.text(key) + _SUBJECT.text(subject) + place
    return content + _EVIDENCE_HASH.text(evidence_hash) if evidence_hash else content


def pinned(content: bytes, fresh_until_ms: int, policy_ids: list[str]) -> bytes:
    """Return the part of a decision that names a fact as one that it rests on. `content` is its `pin`."""
    content = content + _FRESH_UNTIL.moment(fresh_until_ms)
    for policy_id in policy_ids:
        content = content + _POLICY_ID.text(policy_id)
    return _PINNED_FACT.message(content)


def absent(key: str, subject: str, policy_ids: list[str]) -> bytes:
    """Return the part of a decision that names an optional fact as one that was not there."""
    content = _ABSENT_KEY.text(key) + _ABSENT_SUBJECT.text(subject)
    for policy_id in policy_ids:
        content = content + _ABSENT_POLICY_ID.text(policy_id)
    return _ABSENT_FACT.message(content)
