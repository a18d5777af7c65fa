"""What decisions quote of a rule set, serialized once when it is compiled.

Most of a decision's fields are the same whenever the same rule speaks. Serialized Decisions that follow one another are one Decision
with the fields of them all, so a decision takes these parts in with one call instead of setting field after field. Nothing here
decides: which parts a decision is made of is arbitration's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, Outcome, RetryHint, RetryPolicy, RuleMatch, RuleSetReference

from gavel_rules.language.declarations import Rule

_OUTCOMES: Final[Mapping[str, Outcome.ValueType]] = {
    "approve": decision_pb2.OUTCOME_APPROVED,
    "review": decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW,
    "reject": decision_pb2.OUTCOME_REJECTED,
}


def consulted(policy_id: str, version: int, digest: str) -> bytes:
    """Return the part of a decision that names a rule set as one of those that were in force."""
    reference = RuleSetReference(policy_id=policy_id, version=version, digest=digest)
    return Decision(active_policy_ids=[policy_id], active_rule_sets=[reference]).SerializeToString(deterministic=True)


def matched(policy_id: str, rule: Rule, condition: str) -> bytes:
    """Return the part of a decision that names a rule as one that matched, with its condition, or "" where there is no room for it."""
    match = RuleMatch(policy_id=policy_id, rule_id=rule.id, effect=rule.effect, condition=condition)
    return Decision(rule_matches=[match]).SerializeToString(deterministic=True)


def spoken(policy_id: str, version: int, digest: str, rule: Rule) -> bytes:
    """Return the part of a decision that says that a rule makes it, and to what it comes."""
    decision = Decision(
        outcome=_OUTCOMES[rule.effect],
        reason_code=rule.reason_code,
        policy_id=policy_id,
        policy_version=version,
        rule_set_digest=digest,
        rule_id=rule.id,
    )
    if rule.effect == "reject":
        decision.retry_hint.CopyFrom(RetryHint(retryable=True))
    return decision.SerializeToString(deterministic=True)


def retried(policy: RetryPolicy) -> bytes:
    """Return the part of an approval that says how executors may retry."""
    return Decision(retry_policy=policy).SerializeToString(deterministic=True)
