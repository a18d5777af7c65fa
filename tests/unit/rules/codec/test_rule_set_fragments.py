"""The fragments of a rule set parse as a decision built field by field."""

from __future__ import annotations

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, RetryPolicy, RuleMatch, RuleSetReference
from gavel_rules.codec.decision_fragments import merge_fragments
from gavel_rules.codec.rule_set_fragments import (
    encode_retry_policy,
    encode_rule_match,
    encode_rule_outcome,
    encode_rule_set_reference,
    read_effect,
)
from gavel_rules.events.kinds import OUTCOME_REJECTED


def test_all_fragments() -> None:
    """A decision that merges the fragments of two rule sets lists both, and names the rule that decides."""
    decision = Decision()
    for policy_id in ("a", "b"):
        merge_fragments(decision, encode_rule_set_reference(policy_id, 2, f"sha256:{policy_id}"))
        merge_fragments(decision, encode_rule_match(policy_id, "late", "reject", "facts.late"))
    merge_fragments(decision, encode_rule_outcome("b", 2, "sha256:b", "late", "reject", "TOO_LATE"))
    merge_fragments(decision, encode_retry_policy(RetryPolicy(max_attempts=3)))
    expected = Decision(
        outcome=OUTCOME_REJECTED,
        reason_code="TOO_LATE",
        policy_id="b",
        policy_version=2,
        rule_set_digest="sha256:b",
        rule_id="late",
        retry_policy=RetryPolicy(max_attempts=3),
        active_policy_ids=["a", "b"],
        active_rule_sets=[RuleSetReference(policy_id=name, version=2, digest=f"sha256:{name}") for name in ("a", "b")],
        rule_matches=[
            RuleMatch(policy_id=name, rule_id="late", effect=decision_pb2.RULE_EFFECT_REJECT, condition="facts.late") for name in ("a", "b")
        ],
    )
    assert expected == decision


def test_effects_of_every_version() -> None:
    """An effect reads the same whether a decision has it as text, as in version 2, or as an enum."""
    for effect in ("approve", "review", "reject"):
        for as_text in (False, True):
            decision = Decision()
            merge_fragments(decision, encode_rule_match("refunds", "late", effect, "", as_text=as_text))
            (match,) = decision.rule_matches
            assert effect == read_effect(match)
            assert (as_text, not as_text) == (bool(match.effect_text), bool(match.effect))
