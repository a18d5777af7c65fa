"""Random plays on a bus, for property tests.

A play is a list of steps. A step has a kind and three numbers, which choose among the events that exist at that moment. Any list of
steps is a valid play, so hypothesis can shrink it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel_rules.commands import (
    ActivateRuleSet,
    BeginExecution,
    Command,
    DeactivateRuleSet,
    DeployRuleSet,
    PublishEvent,
    SubmitProposal,
    Tick,
)
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.proposal_view import ProposalView
from hypothesis import strategies as st

from tests.support.driver import (
    ABORTED,
    EXECUTOR,
    FAILED,
    OTHER_EXECUTOR,
    PARTIAL,
    RULES,
    SOURCE,
    SUCCESS,
    TIMEOUT,
    Core,
    compile_cached,
    document,
    fact_envelope,
    observation_envelope,
    proposal_envelope,
)

FACTS: Final[dict[str, Any]] = {
    "status": {"key": "order.status", "type": "string", "min_trust": 1, "max_age_ms": 60_000, "sources": [SOURCE, "orders-copy"]},
    "score": {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 30_000, "optional": True},
}
# Has no value for a second attempt, whose params divide by zero.
COMPENSATION: Final = {"action": "refund.reverse", "params": {"amount": "params.amount / double(execution.attempt - 2)"}}
VERSIONS: Final = (
    document(FACTS, RULES, rejection_limit=4, compensation=COMPENSATION),
    document(
        FACTS,
        [*RULES, {"id": "lost", "when": "facts.status == 'lost'", "effect": "approve"}],
        version=2,
        rejection_limit=3,
        compensation=COMPENSATION,
    ),
    document(FACTS, RULES, version=3, rejection_limit=3, contest_window_ms=1_000, compensation=COMPENSATION),
)
# A second rule set on the same action, with a fact that the first does not declare.
AUDIT: Final = document(
    {"note": {"key": "order.note", "type": "string", "max_age_ms": 20_000, "optional": True}},
    [
        {"id": "noted", "when": "has(facts.note) && facts.note == 'cancelled'", "effect": "reject", "reason_code": "NOTED"},
        {"id": "unclear", "when": "has(facts.note) && facts.note == 'lost'", "effect": "review", "reason_code": "UNCLEAR"},
        {"id": "fine", "when": "has(facts.note) && facts.note == 'delivered'", "effect": "approve"},
    ],
    rule_set="audit",
    decision_ttl_ms=5_000,
    compensation=COMPENSATION,
)
STATUSES: Final = (*["delivered"] * 9, "cancelled", "lost", None, 7)
VERDICTS: Final = (REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT)
REPORTS: Final = (SUCCESS, FAILED, PARTIAL, PARTIAL, SUCCESS, TIMEOUT, PARTIAL, ABORTED)
DURATIONS_MS: Final = (0, 1, 900, 1_000, 300, 5_000, 9_999, 1_000, 10_000, 31_000, 1_000, 61_000, 86_400_001)


class Step(NamedTuple):
    """One step: its kind and three choices."""

    kind: str
    first: int
    second: int
    third: int


def _pick(items: Sequence[Any], choice: int) -> Any:
    return items[choice % len(items)] if items else None


def _subject(choice: int) -> str:
    return f"order/{choice % 5}"


def _trace(choice: int) -> str:
    return f"trace-{choice % 9}"


def _fact(core: Core, step: Step) -> Command | None:
    envelope = fact_envelope(
        _pick((*["order.status"] * 5, "order.note"), step.second),
        _pick(STATUSES, step.third),
        subject=_subject(step.first),
        source=_pick((*[SOURCE] * 6, "orders-copy", "hearsay"), step.second),
        occurred_at_ms=core.now_ms - _pick((0, 0, 0, 0, 100, 20_000, -4_000), step.second),
        max_age_ms=_pick((0, 0, 0, 0, 5_000), step.third),
        trace_id=_trace(step.second),
    )
    return PublishEvent(core.admit(envelope))


def _evidence(core: Core, step: Step) -> Command | None:
    core.tool_result(_trace(step.first), is_error=step.third % 4 == 3)
    return None


def _observation(core: Core, step: Step) -> Command | None:
    evidence = _pick(core.events_named("ToolReturned"), step.third)
    score = _pick((0.1, 0.5, 0.95, "high"), step.third)
    trace_id = evidence.trace_id if evidence else _trace(step.second)
    envelope = observation_envelope("order.score", score, evidence=evidence, subject=_subject(step.first), trace_id=trace_id)
    return PublishEvent(core.admit(envelope))


def _proposal(core: Core, step: Step) -> Command | None:
    subjects = sorted({event.subject for event in core.events if event.fact.key == "order.status"})
    subject = _pick(subjects, step.first) if step.third % 10 else _subject(step.first)
    subject = subject or _subject(step.first)
    citable = [event for event in core.events if event.HasField("fact") or event.HasField("observation")]
    of_subject = [event for event in citable if event.subject == subject]
    newest = list({(event.fact.key, event.producer.id): event for event in of_subject}.values())
    cited = _pick((newest, newest, newest, of_subject[-1:], newest, of_subject[:1], citable[-1:], []), step.third)
    changes: dict[str, Any] = {}
    if step.second % 5 == 4:
        changes["projection_version"] = max(0, core.state.head - step.third)
    if step.second % 7 == 6:
        changes["required_facts"] = [_pick(("order.note", "order.score", "order.status"), step.third)]
    if step.third % 6 == 5:
        changes["amount"] = -1
    changes["priority"] = step.third % 3
    return SubmitProposal(ProposalView(core.admit(proposal_envelope(cited, subject=subject, trace_id=_trace(step.second), **changes))))


def _begin(core: Core, step: Step) -> Command | None:
    decision = _pick(core.events_named("DecisionApproved")[-3:], step.first)
    return BeginExecution(decision.event_id, _pick((EXECUTOR, OTHER_EXECUTOR), step.second), 1_000) if decision is not None else None


def _renew(core: Core, step: Step) -> Command | None:
    attempt = _pick(core.events_named("ExecutionStarted")[-3:], step.first)
    return core.renewal(attempt, 1_000 * (1 + step.second % 3), _pick((EXECUTOR, OTHER_EXECUTOR), step.third)) if attempt else None


def _report(core: Core, step: Step) -> Command | None:
    attempt = _pick(core.events_named("ExecutionStarted")[-3:], step.first)
    return core.report_command(attempt, _pick(REPORTS, step.second), _pick((attempt.producer, EXECUTOR), step.third)) if attempt else None


def _derive(core: Core, step: Step) -> Command | None:
    sources = [fact.execution for live in core.state.pending_decisions() for fact in live.awaited_facts]
    report = _pick(sources, step.first)
    return PublishEvent(core.admit(_pick(core.derived_facts(report), 0))) if report is not None else None


def _resolve(core: Core, step: Step) -> Command | None:
    review = _pick(core.state.pending_reviews(), step.first)
    return core.resolution(review.decision, _pick(VERDICTS, step.second)) if review is not None else None


def _revoke(core: Core, step: Step) -> Command | None:
    decision = _pick(core.events_named("DecisionApproved")[-3:], step.first)
    return core.revocation(decision) if decision is not None else None


def _rules(core: Core, step: Step) -> Command | None:
    text = _pick((*VERSIONS, AUDIT), step.first)
    rule_set = compile_cached(text)
    if (rule_set.policy_id, rule_set.version) not in core.state.rule_sets:
        return DeployRuleSet(core.new_id(), rule_set, text)
    shadow = step.third % 7 == 6
    if step.second % 4 == 3:
        return DeactivateRuleSet(core.new_id(), rule_set.policy_id, None, shadow)
    return ActivateRuleSet(core.new_id(), rule_set.policy_id, rule_set.version, None, shadow)


def _tick(core: Core, step: Step) -> Command | None:
    core.pass_time(_pick(DURATIONS_MS, step.first))
    return Tick(1 + step.second)


_KINDS: Final[dict[str, Callable[[Core, Step], Command | None]]] = {
    "fact": _fact,
    "evidence": _evidence,
    "observation": _observation,
    "proposal": _proposal,
    "begin": _begin,
    "renew": _renew,
    "report": _report,
    "derive": _derive,
    "resolve": _resolve,
    "revoke": _revoke,
    "rules": _rules,
    "tick": _tick,
}
# Proposals and facts are more frequent than the other kinds.
_DRAWN: Final = ("fact", "fact", "proposal", "proposal", "proposal", "begin", "report", "derive", *sorted(_KINDS))

_LONG: Final = 80


def draw_steps(seed: int) -> list[Step]:
    """Return the steps of a long play."""
    randomness = random.Random(seed)
    return [Step(randomness.choice(_DRAWN), *(randomness.randrange(21) for _ in range(3))) for _ in range(_LONG)]


_CHOICES: Final = st.integers(0, 20)
# Short plays, which hypothesis shrinks, and long ones, in which more states combine.
STEPS: Final = st.one_of(
    st.lists(st.builds(Step, st.sampled_from(_DRAWN), _CHOICES, _CHOICES, _CHOICES), min_size=5, max_size=60),
    st.integers(0, 2**32).map(draw_steps),
)


def command_of(core: Core, step: Step) -> Command | None:
    """Return the command of a step at this moment; None if there is none, or the step has already been taken."""
    return _KINDS[step.kind](core, step)


def open_bus(steps: Sequence[Step], arbiter_version: int = ARBITER_VERSION) -> Core:
    """Open the bus of a play. In every other play, proposals compete from the start."""
    return Core(VERSIONS[len(steps) % 2 * 2], arbiter_version=arbiter_version)


def play(steps: Sequence[Step]) -> Core:
    """Play all steps on a new bus and return it."""
    core = open_bus(steps)
    take(core, steps)
    return core


def take(core: Core, steps: Sequence[Step]) -> None:
    """Take steps on a bus."""
    for step in steps:
        command = command_of(core, step)
        if command is not None:
            core.run(command)
