"""Stage 18 is the last: a candidate that fails another stage at the close gets that stage's reason code, not OUTRANKED.

A better candidate wins each of these contests. Before the close, an obstacle for one stage is put before the other candidate only.
IMPOSSIBLE lists the obstacles that cannot concern a single candidate, each with the reason.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.language.engines.rete import Network

from tests.support.driver import PARAMS, Core, document
from tests.unit.rules.arbitration.test_precedence import REFUSALS

WINDOW_MS = 5_000
FACTS: dict[str, Any] = {
    name: {"key": f"k.{name}", "type": "string", "min_trust": 2, "max_age_ms": 3_600_000}
    for name in ("missing", "typed", "trusted", "aged", "cited", "changing", "read")
}
FACTS["aged"]["max_age_ms"] = 3_000
RULES: list[dict[str, Any]] = [
    {"id": "fine", "when": " && ".join(["params.amount > 0.0", *(f'facts.{name} != ""' for name in FACTS)]), "effect": "approve"},
]
ASKS = {"params": {"type": "object"}, "conflict_key": '"asking"'}
ASKING_RULES: list[dict[str, Any]] = [
    {"id": "ask", "action": "other.ask", "priority": 1, "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
    {"id": "never", "action": "other.ask", "priority": 2, "when": "false", "effect": "approve"},
]
WINNER, LOSER = "order/2", "order/1"
# The amounts distinguish the two candidates, for rules and for an engine that fails on one of them.
AMOUNT_OF_WINNER, AMOUNT_OF_LOSER = 50.0, 53.25


def rule_set(version: int, rules: list[dict[str, Any]], facts: dict[str, Any] = FACTS, **action: Any) -> str:
    """Return a version of the rule set: both candidates compete for one key, and `other.ask` sends a proposal to review."""
    action = {"conflict_key": '"one"', "contest_window_ms": WINDOW_MS, **action}
    return document(facts, [*rules, *ASKING_RULES], version=version, more_actions={"other.ask": ASKS}, **action)


def stricter(obstacle: str) -> str:
    """Return the version that is activated while they compete, under which only the winner passes."""
    facts = copy.deepcopy(FACTS)
    action: dict[str, Any] = {}
    rules = list(RULES)
    match obstacle:
        case "params":
            action["params"] = {**PARAMS, "properties": {**PARAMS["properties"], "amount": {"type": "number", "maximum": AMOUNT_OF_WINNER}}}
        case "versions":
            action["versions"] = {"planner_version": "8"}
        case "tier":
            facts["trusted"]["min_trust"] = 1
        case "rule":
            rules.insert(0, {"id": "much", "when": f"params.amount > {AMOUNT_OF_WINNER}", "effect": "reject", "reason_code": "TOO_MUCH"})
        case "error":
            rules.insert(0, {"id": "errs-too", "when": f"1 / (int(params.amount) - {int(AMOUNT_OF_LOSER)}) > 5", "effect": "approve"})
        case "counter":
            rules.insert(0, {"id": "counts", "when": "history.notes(subject) < 0", "effect": "reject", "reason_code": "NEVER"})
            return _with_counter(rule_set(2, rules))
        case "silence":
            rules[-1] = {**rules[-1], "when": f"params.amount <= {AMOUNT_OF_WINNER} && {rules[-1]['when']}"}
    return rule_set(2, rules, facts, **action)


def _with_counter(text: str) -> str:
    """Return a rule set with a counter of different notes about a subject, of which one has room."""
    notes = {"of": "facts", "fact": "k.note", "by": "subject", "distinct": "string(value)", "window_ms": 3_600_000, "distinct_max": 1}
    return json.dumps({**json.loads(text), "gavel": "v2", "counters": {"notes": notes}})


IMPOSSIBLE = {
    "ungoverned": "without a rule set for the action no candidate wins",
    "unknown-event": "what a candidate cites was looked up when it entered",
    "no-input": "what a candidate cites was looked up when it entered",
    "duplicate": "a proposal of the trace that is refused while the candidate waits can only be a repetition of the candidate",
    "conflict": "if another decision holds the key, no candidate wins",
}
OBSTACLES = [name for name in REFUSALS if name not in IMPOSSIBLE]


def compete(obstacle: str) -> Decision:
    """Let the two compete, put the obstacle before the loser, and return the decision on the loser."""
    core = Core(rule_set(1, RULES))
    loser, cited, evidence = _enter(core, LOSER, AMOUNT_OF_LOSER, with_version=obstacle == "projection")
    winner, _, _ = _enter(core, WINNER, AMOUNT_OF_WINNER, trace_id="rival", priority=9)
    core.pass_time(WINDOW_MS - 1)
    core.fact("k.aged", "x", subject=WINNER)
    if obstacle != "stale":
        core.fact("k.aged", "x", subject=LOSER)
    _happens(core, obstacle, loser, cited, evidence)
    with pytest.MonkeyPatch.context() as patch:
        if obstacle == "disagreement":
            patch.setattr(Network, "match", _failing_for_loser(Network.match))
        core.tick(1)
    if obstacle != "disagreement":  # a replay would evaluate with the real engine
        core.prove()
    assert decision_pb2.OUTCOME_APPROVED == core.first_decision(winner).outcome
    return core.first_decision(loser)


def _enter(
    core: Core, subject: str, amount: float, *, trace_id: str = "trace-1", priority: int = 0, with_version: bool = False
) -> tuple[Envelope, Envelope, Envelope]:
    """Publish the facts of a candidate and submit it; return its event, the event that it cites, and the tool result of `k.read`."""
    for name in ("missing", "typed", "aged", "changing"):
        core.fact(f"k.{name}", "x", subject=subject)
    if subject == WINNER:
        core.fact("k.trusted", "x", subject=subject)
    evidence = core.tool_result("tools")
    core.observe("k.read", "x", evidence=evidence, trace_id="tools", subject=subject)
    if subject == LOSER:
        core.observe("k.trusted", "x", evidence=core.tool_result("tools"), trace_id="tools", subject=subject)
    cited = core.fact("k.cited", "x", subject=subject)
    changes = {"projection_version": core.state.head} if with_version else {}
    binding = VersionBinding(planner_version="8" if subject == WINNER else "7")
    candidate = core.enter(
        [cited], subject=subject, amount=amount, trace_id=trace_id, priority=priority, version_binding=binding, **changes
    )
    return candidate, cited, evidence


def _happens(core: Core, obstacle: str, loser: Envelope, cited: Envelope, evidence: Envelope) -> None:
    match obstacle:
        case "under-review":
            assert "PLEASE_LOOK" == core.decide([cited], action_type="other.ask", subject=LOSER).reason_code
        case "ended":
            core.activate(_review_rules())
            review = core.propose([cited], subject=LOSER)
            assert "PLEASE_LOOK" == review.decision.reason_code
            core.resolve(review, fact_pb2.REVIEW_VERDICT_REJECT)
            core.activate(rule_set(1, RULES))
        case "projection":
            core.fact("k.changing", "x", subject=LOSER)
        case "contradicted":
            core.observe("k.read", "y", evidence=evidence, trace_id="elsewhere", subject=LOSER)
        case "missing":
            core.fact("k.missing", None, subject=LOSER)
        case "type":
            core.fact("k.typed", 7, subject=LOSER)
        case "superseded":
            core.fact("k.cited", "x", subject=LOSER)
        case "counter":
            core.activate(stricter(obstacle))
            core.fact("k.note", "x", subject=LOSER)
            core.fact("k.note", "y", subject=LOSER)
        case "params" | "versions" | "tier" | "rule" | "error" | "silence":
            core.activate(stricter(obstacle))


def _review_rules() -> str:
    """Return a version that sends every proposal to review, on a conflict key of its own. It is in force only for a moment."""
    rules: list[dict[str, Any]] = [
        {"id": "always", "when": "true", "effect": "review", "reason_code": "PLEASE_LOOK"},
        {"id": "fine", "when": "false", "effect": "approve"},
    ]
    return rule_set(3, rules, {}, conflict_key='"elsewhere"')


def _failing_for_loser(match: Callable[[Network, str], list[int]]) -> Callable[[Network, str], list[int]]:
    """Return an engine that matches no rule for the loser."""
    return lambda network, text: [] if str(AMOUNT_OF_LOSER) in text else match(network, text)


def test_candidate_without_an_obstacle_is_outranked() -> None:
    """Without an obstacle the weaker candidate is OUTRANKED, so the tests below fail without their obstacles."""
    assert reason_codes.OUTRANKED == compete("").reason_code


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_every_earlier_stage_takes_precedence(obstacle: str) -> None:
    """A candidate that fails an earlier stage at the close gets that stage's reason code, in its decision and in the contest."""
    decision = compete(obstacle)
    codes = [candidate.reason_code for candidate in decision.contest.candidates]
    assert (REFUSALS[obstacle], ["", REFUSALS[obstacle]]) == (decision.reason_code, codes)
    assert [] == list(decision.conflict_with_proposal_ids)
