"""The order of precedence: a proposal that several stages would refuse is refused by the earliest, and told of all evidence.

Each obstacle below makes one stage refuse, and every refusal of the table of stages has one. Any two of them together must give
the earlier one's reason code; the pairs that cannot be are named with their reason. A contest (stage 18) is lost only by what
passes all other stages: see test_precedence_in_contests.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference, VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.events import ARBITER_VERSION
from gavel_rules.language.network import Network
from gavel_rules.stages import STAGES

from tests.unit.core.driver import SUBJECT, Core, document, event_id

# One declared fact per evidence stage, so that obstacles do not touch each other.
FACTS: dict[str, Any] = {
    name: {"key": f"k.{name}", "type": "string", "min_trust": 1, "max_age_ms": 3_600_000}
    for name in ("missing", "typed", "trusted", "aged", "cited", "changing")
}
FACTS["aged"]["max_age_ms"] = 1_000
FACTS["read"] = {"key": "k.read", "type": "string", "min_trust": 2, "max_age_ms": 3_600_000}
OTHER = {"params": {"type": "object"}, "retry": {"max_attempts": 1}}
RULES: list[dict[str, Any]] = [
    {"id": "errs", "when": "has(params.note) && 1 / size(params.note) > 1", "effect": "approve"},
    {"id": "too-much", "when": "params.amount > 100.0", "effect": "reject", "reason_code": "TOO_MUCH"},
    {"id": "fine", "when": " && ".join(["params.amount != 75.0", *(f'facts.{name} != ""' for name in FACTS)]), "effect": "approve"},
    {"id": "hold", "action": "other.hold", "priority": 1, "when": "true", "effect": "approve"},
    {"id": "ask", "action": "other.ask", "priority": 1, "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
    {"id": "never", "action": "other.ask", "priority": 2, "when": "false", "effect": "approve"},
]
TEXT = document(
    FACTS, RULES, versions={"planner_version": "7"}, more_actions={"other.hold": OTHER, "other.ask": {**OTHER, "conflict_key": '"asking"'}}
)
# In force for a moment: it lets a person end the action, on a key of its own.
ASKING = document(
    {},
    [
        {"id": "ask", "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
        {"id": "never", "when": "false", "effect": "approve"},
    ],
    version=2,
    conflict_key='"elsewhere"',
)

REFUSALS = {
    "under-review": reasons.UNDER_REVIEW,
    "ended": reasons.NO_FEASIBLE_PROPOSAL,
    "ungoverned": reasons.NO_ACTIVE_POLICY,
    "params": reasons.INVALID_PARAMS,
    "versions": reasons.VERSION_MISMATCH,
    "unknown-event": reasons.UNKNOWN_EVENT,
    "no-input": reasons.NO_FACT_INPUT,
    "projection": reasons.PROJECTION_CHANGED,
    "contradicted": reasons.CONFLICTING_EVIDENCE,
    "missing": reasons.NEED_MORE_FACTS,
    "type": reasons.FACT_TYPE_MISMATCH,
    "tier": reasons.INSUFFICIENT_EVIDENCE_TIER,
    "stale": reasons.STALE_FACTS,
    "superseded": reasons.FACT_SUPERSEDED,
    "duplicate": reasons.DUPLICATE_PROPOSAL,
    "conflict": reasons.CONFLICTING_DECISION,
    "error": reasons.EVALUATION_ERROR,
    "disagreement": reasons.ENGINE_DISAGREEMENT,
    "silence": reasons.NO_RULE_MATCHED,
    "rule": "TOO_MUCH",
}
ORDER = list(REFUSALS)
EVIDENCE = {
    "stale": ("k.aged", decision_pb2.FACT_REQUIREMENT_STATE_STALE),
    "missing": ("k.missing", decision_pb2.FACT_REQUIREMENT_STATE_MISSING),
    "tier": ("k.trusted", decision_pb2.FACT_REQUIREMENT_STATE_TIER_TOO_LOW),
    "type": ("k.typed", decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE),
    "superseded": ("k.cited", decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED),
}
IMPOSSIBLE = {
    frozenset({"no-input", "superseded"}): "citing an old version of a declared fact is citing an input",
    frozenset({"silence", "rule"}): "where a rule refuses, one matches",
}


def decide(obstacles: frozenset[str]) -> Decision:
    """Meet exactly these obstacles and return the decision."""
    core = Core(TEXT)
    unrelated = core.fact("k.unrelated", "x", subject="order/2")
    if "conflict" in obstacles:
        held = core.decide([core.fact("k.note", "x")], action_type="other.hold", trace_id="rival")
        assert decision_pb2.OUTCOME_APPROVED == held.outcome
    core.fact("k.aged", "x")
    core.pass_time(2_000)
    if "stale" not in obstacles:
        core.fact("k.aged", "x")
    evidence = core.tool_result("tools")
    core.observe("k.read", "x", evidence=evidence, trace_id="tools")
    core.fact("k.typed", 7 if "type" in obstacles else "x")
    if "tier" in obstacles:
        core.observe("k.trusted", "x")
    else:
        core.fact("k.trusted", "x")
    based_on = core.fact("k.cited", "x")
    if "superseded" in obstacles:
        core.fact("k.cited", "y")
    changes: dict[str, Any] = {"projection_version": core.state.head}
    core.fact("k.changing", "x")
    if "projection" not in obstacles:
        changes = {}
    params: dict[str, object] = {"amount": 500 if "rule" in obstacles else 75 if "silence" in obstacles else 50}
    if "error" in obstacles:
        params["note"] = ""
    if "params" in obstacles:
        params["surprise"] = True
    strange = [EventReference(event_id=event_id(999), sequence_number=999)] if "unknown-event" in obstacles else []
    binding = VersionBinding(planner_version="6" if "versions" in obstacles else "7")
    cited = [unrelated if "no-input" in obstacles else based_on]
    proposal: dict[str, Any] = {"params": params, "references": strange, "version_binding": binding}
    if "duplicate" in obstacles:
        assert decision_pb2.OUTCOME_REJECTED == core.decide(cited, **proposal).outcome
    if "missing" not in obstacles:
        core.fact("k.missing", "x")
    if "contradicted" in obstacles:
        core.observe("k.read", "y", evidence=evidence, trace_id="elsewhere")
    if "ended" in obstacles:
        core.activate(ASKING)
        ended = core.resolve(_asked(core, "refund.create"), fact_pb2.REVIEW_VERDICT_REJECT)
        assert reasons.REVIEW_REJECTED == ended.decision.reason_code
        core.activate(TEXT)
    if "under-review" in obstacles:
        _asked(core, "other.ask")
    if "ungoverned" in obstacles:
        core.deactivate("refunds")
    if "disagreement" in obstacles:
        # Such an engine is not the one that a replay has: it would not reproduce the decision.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Network, "match", _contrary(Network.match))
            return core.decide(cited, **proposal, **changes)
    decision = core.decide(cited, **proposal, **changes)
    if len(obstacles) == 1:  # replaying every pair would only take time
        core.prove()
    return decision


def _asked(core: Core, action_type: str) -> Envelope:
    """Propose what a rule sends to a person, in the trace of the proposal under test, and return the decision."""
    asked = core.propose([core.fact("k.note", "x")], action_type=action_type)
    assert "PLEASE_LOOK" == asked.decision.reason_code
    return asked


def _contrary(match: Callable[[Network, str], list[int]]) -> Callable[[Network, str], list[int]]:
    """An engine that says nothing where the real one finds a rule, and finds the first rule where that says nothing."""
    return lambda network, text: [] if match(network, text) else [0]


def test_every_refusal_of_the_table_has_an_obstacle() -> None:
    """The obstacles stand in the order of the table of stages, none is left out, and a rule's own refusal comes with its stage."""
    table = [code for stage in STAGES if stage.number < 18 for code in stage.reason_codes]
    assert table == [code for code in REFUSALS.values() if code in reasons.RESERVED]
    assert "rule" == ORDER[-1]


def test_no_obstacle_is_approved() -> None:
    """Without any obstacle the proposal is approved: none of the tests below passes for another reason."""
    assert decision_pb2.OUTCOME_APPROVED == decide(frozenset()).outcome


@pytest.mark.parametrize("obstacle", ORDER)
def test_each_stage_refuses_by_itself(obstacle: str) -> None:
    """Each obstacle alone refuses with its own reason code, by the policy that speaks there."""
    decision = decide(frozenset({obstacle}))
    outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW if obstacle == "contradicted" else decision_pb2.OUTCOME_REJECTED
    assert (outcome, REFUSALS[obstacle]) == (decision.outcome, decision.reason_code)
    spoke = ("refunds", 1) if obstacle == "rule" else ("gavel", ARBITER_VERSION)
    assert spoke == (decision.policy_id, decision.policy_version)


@pytest.mark.parametrize("pair", [pair for pair in combinations(ORDER, 2) if frozenset(pair) not in IMPOSSIBLE], ids="+".join)
def test_the_earlier_stage_gives_the_reason(pair: tuple[str, str]) -> None:
    """Of two stages that refuse, the earlier gives the reason code."""
    assert REFUSALS[pair[0]] == decide(frozenset(pair)).reason_code


def test_what_is_ended_is_not_called_a_repetition() -> None:
    """A hopeless proposal that is repeated word for word has ended, and is no duplicate (a verdict, above, wipes out what was refused)."""
    core = Core(document())
    cancelled = core.fact("order.status", "cancelled")
    assert ["ORDER_CANCELLED", reasons.NO_FEASIBLE_PROPOSAL] == [core.decide([cancelled]).reason_code for _ in range(2)]


LATER = ["unknown-event", "no-input", "projection", "contradicted", "missing", "duplicate", "conflict", "error", "silence", "rule"]


@pytest.mark.parametrize("earlier", ["", *LATER])
def test_one_rejection_names_all_missing_evidence(earlier: str) -> None:
    """Whatever refuses from stage 6 to 13, the hint has a row for every unmet requirement: declarations by name, then SUPERSEDED."""
    obstacles = frozenset(({earlier} - {""}) | EVIDENCE.keys()) - (frozenset({"superseded"}) if earlier == "no-input" else frozenset())
    decision = decide(obstacles)
    rows = [(row.key, row.state) for row in decision.retry_hint.fact_requirements]
    assert [EVIDENCE[name] for name in EVIDENCE if name in obstacles] == rows
    assert [key for key, _ in rows] == list(decision.retry_hint.missing_fact_keys)
    assert {SUBJECT} == {row.subject for row in decision.retry_hint.fact_requirements}
    assert (earlier != "contradicted") == decision.retry_hint.retryable


def _hint_summary(decision: Decision) -> tuple[int, int, list[str]]:
    hint = decision.retry_hint
    return hint.required_trust_tier, hint.max_observation_age_ms, list(hint.preferred_sources)


def test_the_hint_summarises_its_rows() -> None:
    """The hint's first fields give the strictest tier, the tightest age and all accepted sources of its rows."""
    facts = {
        "a": {"key": "k.a", "type": "string", "min_trust": 2, "max_age_ms": 5_000, "sources": ["z", "b"]},
        "b": {"key": "k.b", "type": "string", "min_trust": 1, "max_age_ms": 9_000, "sources": ["c", "b"]},
    }
    core = Core(document(facts, [{"id": "fine", "when": "true", "effect": "approve"}]))
    decision = core.decide([core.fact("k.note", "x")], max_fact_age_ms=7_000)
    assert (1, 5_000, ["b", "c", "z"]) == _hint_summary(decision)
    assert [5_000, 7_000] == [row.max_age_ms for row in decision.retry_hint.fact_requirements]
    assert [["b", "z"], ["b", "c"]] == [list(row.sources) for row in decision.retry_hint.fact_requirements]


@pytest.mark.parametrize("obstacle", ["under-review", "ended", "ungoverned", "params", "versions"])
def test_before_the_evidence_there_is_no_hint_of_it(obstacle: str) -> None:
    """A refusal before stage 6 says nothing of evidence: what it would be selected for is not known."""
    assert [] == list(decide(frozenset({obstacle}) | EVIDENCE.keys()).retry_hint.fact_requirements)
