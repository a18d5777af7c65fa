"""Fragments of decisions that depend on a rule set alone, serialized once when it is compiled: docs/performance.md#fragments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, Outcome, RetryPolicy, RuleEffect, RuleMatch, RuleSetReference

_OUTCOMES: Final[Mapping[str, Outcome.ValueType]] = {
    "approve": decision_pb2.OUTCOME_APPROVED,
    "review": decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW,
    "reject": decision_pb2.OUTCOME_REJECTED,
}

_EFFECTS: Final[Mapping[str, RuleEffect.ValueType]] = {
    "approve": decision_pb2.RULE_EFFECT_APPROVE,
    "review": decision_pb2.RULE_EFFECT_REVIEW,
    "reject": decision_pb2.RULE_EFFECT_REJECT,
}

_EFFECT_NAMES: Final[Mapping[RuleEffect.ValueType, str]] = {number: name for name, number in _EFFECTS.items()}


def read_effect(match: RuleMatch) -> str:
    """Return the effect of a matching rule, "approve", "review" or "reject": decisions of version 2 have it as text."""
    return _EFFECT_NAMES.get(match.effect, match.effect_text)


def encode_rule_set_reference(policy_id: str, version: int, digest: str) -> bytes:
    """Encode that a rule set was active."""
    reference = RuleSetReference(policy_id=policy_id, version=version, digest=digest)
    return Decision(active_policy_ids=[policy_id], active_rule_sets=[reference]).SerializeToString(deterministic=True)


def encode_rule_match(policy_id: str, rule_id: str, effect: str, condition: str, *, as_text: bool = False) -> bytes:
    """Encode that a rule matched. `condition` is "" where a decision has no room for it; `as_text`: the effect as text (version 2)."""
    match = RuleMatch(policy_id=policy_id, rule_id=rule_id, condition=condition)
    if as_text:
        match.effect_text = effect
    else:
        match.effect = _EFFECTS[effect]
    return Decision(rule_matches=[match]).SerializeToString(deterministic=True)


def encode_rule_outcome(policy_id: str, version: int, digest: str, rule_id: str, effect: str, reason_code: str) -> bytes:
    """Encode the rule that decides, with its outcome."""
    return Decision(
        outcome=_OUTCOMES[effect],
        reason_code=reason_code,
        policy_id=policy_id,
        policy_version=version,
        rule_set_digest=digest,
        rule_id=rule_id,
    ).SerializeToString(deterministic=True)


def encode_retry_policy(policy: RetryPolicy) -> bytes:
    """Encode how executors retry an approved action."""
    return Decision(retry_policy=policy).SerializeToString(deterministic=True)
