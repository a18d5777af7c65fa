"""The order of precedence: of several stages that would refuse, the earliest one refuses; the hint names all missing evidence.

Each obstacle below makes one stage refuse, and every refusal in the table of stages has an obstacle. Any two obstacles together must give
the reason code of the earlier stage; pairs that cannot occur are listed with the reason. test_precedence_in_contests covers stage 18, which
only refuses candidates that pass all other stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.common_pb2 import EventReference, VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.language.engines.rete import Network
from gavel_rules.reason_codes import Arms

from tests.support.driver import AGENT, SUBJECT, Core, document, event_id

# One declared fact per evidence stage, so that obstacles do not affect each other.
FACTS: dict[str, Any] = {
    name: {"key": f"k.{name}", "type": "string", "min_trust": 1, "max_age_ms": 3_600_000}
    for name in ("missing", "typed", "trusted", "aged", "cited", "changing")
}
FACTS["aged"]["max_age_ms"] = 1_000
FACTS["read"] = {"key": "k.read", "type": "string", "min_trust": 2, "max_age_ms": 3_600_000}
OTHER = {"params": {"type": "object"}, "retry": {"max_attempts": 1}}
RULES: list[dict[str, Any]] = [
    {"id": "errs", "when": "has(params.note) && 1 / size(params.note) > 1", "effect": "approve"},
    {"id": "counts", "when": "history.facts() < 0", "effect": "reject", "reason_code": "NEVER"},
    {"id": "too-much", "when": "params.amount > 100.0", "effect": "reject", "reason_code": "TOO_MUCH"},
    {"id": "fine", "when": " && ".join(["params.amount != 75.0", *(f'facts.{name} != ""' for name in FACTS)]), "effect": "approve"},
    {"id": "hold", "action": "other.hold", "priority": 1, "when": "true", "effect": "approve"},
    {"id": "ask", "action": "other.ask", "priority": 1, "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
    {"id": "never", "action": "other.ask", "priority": 2, "when": "false", "effect": "approve"},
]
# The entries of this counter overflow with the second fact.
COUNTER = {"of": "facts", "fact": "k.counted", "window_ms": 3_600_000, "entries_max": 1}
TEXT = document(
    FACTS, RULES, versions={"planner_version": "7"}, more_actions={"other.hold": OTHER, "other.ask": {**OTHER, "conflict_key": '"asking"'}}
)
TEXT = json.dumps({**json.loads(TEXT), "gavel": "v2", "counters": {"facts": COUNTER}})
# In force only for a moment, on a key of its own: a person rejects its review, which closes the action.
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
    "under-review": reason_codes.UNDER_REVIEW,
    "ended": reason_codes.NO_FEASIBLE_PROPOSAL,
    "ungoverned": reason_codes.NO_ACTIVE_POLICY,
    "params": reason_codes.INVALID_PARAMS,
    "versions": reason_codes.VERSION_MISMATCH,
    "unknown-event": reason_codes.UNKNOWN_EVENT,
    "no-input": reason_codes.NO_FACT_INPUT,
    "projection": reason_codes.PROJECTION_CHANGED,
    "contradicted": reason_codes.CONFLICTING_EVIDENCE,
    "missing": reason_codes.NEED_MORE_FACTS,
    "type": reason_codes.FACT_TYPE_MISMATCH,
    "tier": reason_codes.INSUFFICIENT_EVIDENCE_TIER,
    "stale": reason_codes.STALE_FACTS,
    "superseded": reason_codes.FACT_SUPERSEDED,
    "duplicate": reason_codes.DUPLICATE_PROPOSAL,
    "conflict": reason_codes.CONFLICTING_DECISION,
    "counter": reason_codes.COUNTER_FULL,
    "error": reason_codes.EVALUATION_ERROR,
    "disagreement": reason_codes.ENGINE_DISAGREEMENT,
    "silence": reason_codes.NO_RULE_MATCHED,
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


def decide(obstacles: frozenset[str], core: Core | None = None) -> Decision:
    """Return the decision on a proposal that meets exactly these obstacles."""
    core = Core(TEXT) if core is None else core
    other_fact = core.fact("k.unrelated", "x", subject="order/2")
    if "conflict" in obstacles:
        holder = core.decide([core.fact("k.note", "x")], action_type="other.hold", trace_id="rival")
        assert decision_pb2.OUTCOME_APPROVED == holder.outcome
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
    if "counter" in obstacles:
        core.fact("k.counted", 1)
        core.fact("k.counted", 2)
    if "error" in obstacles:
        params["note"] = ""
    if "params" in obstacles:
        params["surprise"] = True
    unknown = [EventReference(event_id=event_id(999), sequence_number=999)] if "unknown-event" in obstacles else []
    binding = VersionBinding(planner_version="6" if "versions" in obstacles else "7")
    cited = [other_fact if "no-input" in obstacles else based_on]
    proposal: dict[str, Any] = {"params": params, "references": unknown, "version_binding": binding}
    if "duplicate" in obstacles:
        assert decision_pb2.OUTCOME_REJECTED == core.decide(cited, **proposal).outcome
    if "missing" not in obstacles:
        core.fact("k.missing", "x")
    if "contradicted" in obstacles:
        core.observe("k.read", "y", evidence=evidence, trace_id="elsewhere")
    if "ended" in obstacles:
        core.activate(ASKING)
        verdict = core.resolve(_propose_review(core, "refund.create"), fact_pb2.REVIEW_VERDICT_REJECT)
        assert reason_codes.REVIEW_REJECTED == verdict.decision.reason_code
        core.activate(TEXT)
    if "under-review" in obstacles:
        _propose_review(core, "other.ask")
    if "ungoverned" in obstacles:
        core.deactivate("refunds")
    if "disagreement" in obstacles:
        # A replay evaluates with the real engine and would not reproduce the decision.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Network, "match", _opposite_engine(Network.match))
            return core.decide(cited, **proposal, **changes)
    decision = core.decide(cited, **proposal, **changes)
    if len(obstacles) == 1:  # replaying every pair would only take time
        core.prove()
    return decision


def _propose_review(core: Core, action_type: str) -> Envelope:
    """Submit a proposal that a rule sends to review, in the trace of the proposal under test, and return the decision."""
    review = core.propose([core.fact("k.note", "x")], action_type=action_type)
    assert "PLEASE_LOOK" == review.decision.reason_code
    return review


def _opposite_engine(match: Callable[[Network, str], list[int]]) -> Callable[[Network, str], list[int]]:
    """Return an engine that matches no rule where the real one matches, and the first rule where the real one matches none."""
    return lambda network, text: [] if match(network, text) else [0]


def test_every_refusal_of_the_table_has_an_obstacle() -> None:
    """The obstacles have the order of the table of stages and are complete; a rule's own refusal stands at its stage."""
    table = [row.code for row in reason_codes.REASON_CODES if row.stage is not None and row.stage < 18]
    assert table == [code for code in REFUSALS.values() if code in reason_codes.RESERVED_CODES]
    assert "rule" == ORDER[-1]


@pytest.mark.parametrize("obstacle", [name for name in ORDER if name not in ("rule", "duplicate")])
def test_refusals_set_the_memories_of_their_row(obstacle: str) -> None:
    """A refusal arms what its row in the table says, and nothing else; one that read a counter arms no fingerprint."""
    core = Core(TEXT)
    decision = decide(frozenset({obstacle}), core)
    (row,) = [row for row in reason_codes.REASON_CODES if row.code == decision.reason_code]
    is_reviewed = core.state.open_review("trace-1", AGENT.type, AGENT.id) == decision.decision_id
    assert (Arms.COUNT in row.arms) == (decision.consecutive_rejections == 1)
    is_armed = core.state.last_refusal("trace-1", AGENT.type, AGENT.id, core.now_ms) != ""
    assert (Arms.FINGERPRINT in row.arms and not decision.counters) == is_armed
    assert (Arms.TRACE_REVIEW in row.arms) == is_reviewed == (decision.outcome == decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW)
    assert (row.retryable and not decision.terminal) == decision.retry_hint.retryable


def test_no_obstacle_is_approved() -> None:
    """Without an obstacle the proposal is approved, so the tests below fail without their obstacles."""
    assert decision_pb2.OUTCOME_APPROVED == decide(frozenset()).outcome


@pytest.mark.parametrize("obstacle", ORDER)
def test_each_obstacle_refuses_alone(obstacle: str) -> None:
    """Each obstacle alone gives its reason code, and the policy_id of the rule set or of Gavel."""
    decision = decide(frozenset({obstacle}))
    outcome = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW if obstacle == "contradicted" else decision_pb2.OUTCOME_REJECTED
    assert (outcome, REFUSALS[obstacle]) == (decision.outcome, decision.reason_code)
    policy = ("refunds", 1) if obstacle == "rule" else ("gavel", ARBITER_VERSION)
    assert policy == (decision.policy_id, decision.policy_version)


@pytest.mark.parametrize("pair", [pair for pair in combinations(ORDER, 2) if frozenset(pair) not in IMPOSSIBLE], ids="+".join)
def test_the_earlier_stage_gives_the_reason(pair: tuple[str, str]) -> None:
    """Of two refusing stages, the earlier one gives the reason code."""
    assert REFUSALS[pair[0]] == decide(frozenset(pair)).reason_code


def test_no_feasible_proposal_takes_precedence_over_duplicate() -> None:
    """A repeated hopeless proposal is refused at stage 2, not as a duplicate. (A verdict, as above, clears the last refusal.)"""
    core = Core(document())
    cancelled = core.fact("order.status", "cancelled")
    assert ["ORDER_CANCELLED", reason_codes.NO_FEASIBLE_PROPOSAL] == [core.decide([cancelled]).reason_code for _ in range(2)]


LATER = ["unknown-event", "no-input", "projection", "contradicted", "missing", "duplicate", "conflict", "error", "silence", "rule"]


@pytest.mark.parametrize("earlier", ["", *LATER])
def test_one_rejection_names_all_missing_evidence(earlier: str) -> None:
    """For any refusal of stages 6 to 13 the hint has a row for every unmet requirement: declarations by name, then SUPERSEDED."""
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
    """The hint's first fields are the strictest tier, the tightest age and all accepted sources of its rows."""
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
def test_refusal_before_the_evidence_has_no_hint(obstacle: str) -> None:
    """A refusal before stage 6 has no rows: the requirements are not known there."""
    assert [] == list(decide(frozenset({obstacle}) | EVIDENCE.keys()).retry_hint.fact_requirements)
