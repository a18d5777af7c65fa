"""The budget of rejections: what counts, when a person is called, what resets the count (seeds 002 §5.6, §6.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reasons
from gavel_rules.events import ARBITER_VERSION
from gavel_rules.limits import REJECTION_LIMIT_DEFAULT, TRACE_LAPSE_MS

from tests.unit.core.driver import RULES, Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW


def limited(limit: int | None = 3) -> Core:
    """A bus whose action allows so many rejections in a row; None: what Gavel allows."""
    return Core(document(rejection_limit=limit))


def reject(core: Core, trace_id: str = "trace-1") -> Decision:
    """Have a proposal refused for lack of facts."""
    return core.decide([core.fact("k.note", "x", trace_id=f"of-{trace_id}")], trace_id=trace_id)


def counts(decisions: list[Decision]) -> list[tuple[int, int]]:
    """Outcome and count of each."""
    return [(decision.outcome, decision.consecutive_rejections) for decision in decisions]


def test_rejections_in_a_row_are_counted() -> None:
    """Each rejected first decision adds one to its trace's count and says so, itself included."""
    core = limited(5)
    assert [(REJECTED, 1), (REJECTED, 2), (REJECTED, 3)] == counts([reject(core) for _ in range(3)])
    core.prove()


def test_traces_are_counted_apart() -> None:
    """A rejection counts for its own trace only."""
    core = limited()
    reject(core)
    reject(core)
    assert [(REJECTED, 1)] == counts([reject(core, "trace-2")])


@pytest.mark.parametrize("limit", [1, 2, None])
def test_at_the_limit_a_person_is_called_once(limit: int | None) -> None:
    """The rejection that reaches the limit becomes a review with the original code as a warning and one notice in its commit."""
    core = limited(limit)
    most = limit if limit is not None else REJECTION_LIMIT_DEFAULT
    decisions = [reject(core) for _ in range(most + 2)]
    assert [REJECTED] * (most - 1) + [REVIEW] + [REJECTED] * 2 == [decision.outcome for decision in decisions]
    escalated = decisions[most - 1]
    assert (reasons.REJECTION_LIMIT, "gavel", ARBITER_VERSION) == (escalated.reason_code, escalated.policy_id, escalated.policy_version)
    assert [reasons.NEED_MORE_FACTS] == [warning.code for warning in escalated.warnings]
    assert (most, False) == (escalated.consecutive_rejections, escalated.retry_hint.retryable)
    assert ["order.status"] == list(escalated.retry_hint.missing_fact_keys)
    (notice,) = core.named("NeedsHumanReview")
    assert (escalated.decision_id, escalated.state_version + 2) == (notice.causation_id, notice.sequence_number)
    core.prove()


def test_a_trace_under_review_is_closed_and_its_refusals_do_not_count() -> None:
    """While the review is open its trace is refused with UNDER_REVIEW, which adds nothing; other traces go on."""
    core = limited(2)
    reject(core)
    reject(core)
    under_review = [reject(core) for _ in range(3)]
    assert {(reasons.UNDER_REVIEW, 2)} == {(decision.reason_code, decision.consecutive_rejections) for decision in under_review}
    assert reasons.NEED_MORE_FACTS == reject(core, "trace-2").reason_code
    core.prove()


def test_a_trace_under_review_may_still_publish() -> None:
    """Facts and observations of a trace under review are recorded."""
    core = limited(1)
    reject(core)
    assert "trace-1" == core.fact("k.value", 1, trace_id="trace-1").trace_id
    assert "trace-1" == core.observe("k.value", 1).trace_id


def test_a_review_that_a_rule_asks_for_adds_nothing() -> None:
    """NEEDS_HUMAN_REVIEW by a rule keeps the count as it is, is no escalation, and closes the trace."""
    core = limited()
    reject(core)
    core.observe("order.score", 0.95, evidence=core.tool_result())
    review = core.decide([core.fact("order.status", "delivered")])
    assert (REVIEW, "FRAUD_SUSPECTED", 1) == (review.outcome, review.reason_code, review.consecutive_rejections)
    assert [] == core.named("NeedsHumanReview")
    assert reasons.UNDER_REVIEW == reject(core).reason_code
    core.prove()


def test_an_approval_resets_the_count() -> None:
    """After an approval the trace starts over."""
    core = limited()
    reject(core)
    reject(core)
    assert (APPROVED, 0) == counts([core.approve().decision])[0]
    assert (REJECTED, 1) == counts([reject(core)])[0]
    core.prove()


@pytest.mark.parametrize(
    ("rejected_by", "reason_code"),
    [("rules", "TOO_LITTLE"), ("ungoverned", reasons.NO_ACTIVE_POLICY), ("params", reasons.INVALID_PARAMS)],
)
def test_every_other_rejection_counts(rejected_by: str, reason_code: str) -> None:
    """Rejections by rules, schema and lack of policy count like those for evidence; ungoverned actions have the default limit."""
    core = limited()
    rules = [{"id": "much", "when": "params.amount < 10.0", "effect": "reject", "reason_code": "TOO_LITTLE"}]
    core.activate(document(rules=[*rules, *RULES], rejection_limit=3, version=2))
    status = core.fact("order.status", "delivered")
    decisions = []
    for amount in (5, 6, 7):
        if rejected_by == "ungoverned":
            decisions.append(core.decide([status], action_type="nobody.knows"))
        else:
            decisions.append(core.decide([status], amount=-amount if rejected_by == "params" else amount))
    assert [(REJECTED, 1), (REJECTED, 2), (REVIEW, 3)] == counts(decisions)
    assert [reason_code, reason_code, reasons.REJECTION_LIMIT] == [decision.reason_code for decision in decisions]
    core.prove()


def test_a_conflict_counts() -> None:
    """CONFLICTING_DECISION is a rejection like others."""
    core = limited()
    core.approve(trace_id="winner")
    assert (REJECTED, 1) == counts([core.decide([core.fact("order.status", "delivered")])])[0]


def test_an_escalation_for_lack_of_trust_still_asks_for_facts() -> None:
    """Where the limit hides INSUFFICIENT_EVIDENCE_TIER, sensors are asked all the same, after the call for a person."""
    core = limited(1)
    core.propose([core.observe("order.status", "delivered", tool="orders-db")])
    assert ["NeedsHumanReview", "FactCollectionRequested"] == [event.event_name for event in core.events[-2:]]
    core.prove()


# Classes


def of_class(core: Core, name: str, **changes: Any) -> Decision:
    """Have a proposal refused for a reason of this class; the subjects keep the classes apart."""
    if name == "evidence":
        return core.decide([core.fact("k.note", "x", subject="order/9")], subject="order/9", **changes)
    if name == "conflict":
        if "order/8" not in core.state.holds:
            core.approve("order/8", trace_id="rival")
        return core.decide([core.fact("order.status", "delivered", subject="order/8")], subject="order/8", **changes)
    return core.decide([core.fact("k.note", "x")], amount=-1, **changes)


def classes(decision: Decision) -> tuple[int, int, int]:
    """How many of each class the decision counts."""
    counts = decision.rejection_counts
    return counts.evidence, counts.policy, counts.conflict


def test_rejections_are_counted_by_class() -> None:
    """A decision counts the rejections of its trace by class, and their sum; an approval resets all."""
    core = limited(10)
    counted = [classes(of_class(core, name)) for name in ("evidence", "policy", "conflict", "policy")]
    assert [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 2, 1)] == counted
    assert (0, 0, 0) == classes(core.approve().decision)
    again = of_class(core, "evidence")
    assert ((1, 0, 0), 1) == (classes(again), again.consecutive_rejections)
    core.prove()


@pytest.mark.parametrize("name", ["evidence", "policy", "conflict"])
def test_a_class_may_have_a_limit_of_its_own(name: str) -> None:
    """Rejections of a limited class count by themselves, up to their own limit, whatever `rejection_limit` is."""
    core = Core(document(rejection_limit=2, rejection_limits={name: 4}))
    others = {"evidence", "policy", "conflict"} - {name}
    of_class(core, min(others))
    decisions = [of_class(core, name) for _ in range(4)]
    assert [(REJECTED, 2), (REJECTED, 3), (REJECTED, 4), (REVIEW, 5)] == counts(decisions)
    assert reasons.REJECTION_LIMIT == decisions[-1].reason_code
    core.prove()


def test_the_general_limit_is_for_the_other_classes() -> None:
    """`rejection_limit` counts the classes without a limit of their own together; without it, Gavel's own does."""
    for general in (None, REJECTION_LIMIT_DEFAULT):
        core = Core(document(rejection_limit=general, rejection_limits={"evidence": 50}))
        for _ in range(4):
            of_class(core, "evidence")
        assert [(REJECTED, 5), (REJECTED, 6), (REVIEW, 7)] == counts([of_class(core, name) for name in ("policy", "conflict", "policy")])
        core.prove()


# Lapse


@pytest.mark.parametrize("others_speak", [False, True])
@pytest.mark.parametrize(("silence_ms", "expected"), [(TRACE_LAPSE_MS, (REVIEW, 3)), (TRACE_LAPSE_MS + 1, (REJECTED, 1))])
def test_the_count_lapses_after_a_day_of_silence(silence_ms: int, expected: tuple[int, int], others_speak: bool) -> None:
    """A trace's count lapses more than 24 hours after its last event, whether or not other traces spoke in between."""
    core = limited()
    note = core.fact("k.note", "x")
    for _ in range(2):
        core.decide([note])
    core.pass_time(silence_ms)
    if others_speak:
        core.fact("k.note", "y", trace_id="someone-else")
    assert expected == counts([core.decide([note])])[0]
    core.prove()


def test_any_event_of_the_trace_keeps_its_count() -> None:
    """What lapses is silence: a fact of the trace keeps the count alive."""
    core = limited()
    reject(core)
    core.pass_time(TRACE_LAPSE_MS)
    core.fact("k.note", "x", trace_id="trace-1")
    core.pass_time(TRACE_LAPSE_MS)
    assert (REJECTED, 2) == counts([reject(core)])[0]
    core.prove()


def test_a_review_does_not_lapse() -> None:
    """An open review closes its trace however long it stays silent."""
    core = limited(1)
    reject(core)
    core.pass_time(10 * TRACE_LAPSE_MS)
    core.fact("k.note", "x", trace_id="someone-else")
    assert reasons.UNDER_REVIEW == reject(core).reason_code
    core.prove()


def test_a_lapsed_trace_leaves_nothing_behind() -> None:
    """What is remembered of traces does not grow with the log: a lapsed trace is gone from the state."""
    core = limited()
    for number in range(3):
        reject(core, f"trace-{number}")
        core.tool_result(f"tools-{number}")
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("k.note", "x", trace_id="someone-else")
    assert ({}, {}, {}) == (core.state.traces, core.state.tool_calls, core.state.tool_results)


def test_an_approval_keeps_nothing_of_a_trace_without_evidence() -> None:
    """A trace whose count is zero and that has no tool evidence takes no room."""
    core = limited()
    reject(core)
    core.approve()
    assert {} == core.state.traces


def test_an_approval_keeps_tool_evidence() -> None:
    """An approval resets the count; the trace's tool results stay usable."""
    core = limited()
    evidence = core.tool_result()
    reject(core)
    core.approve()
    assert 2 == core.observe("k.value", 1, evidence=evidence).observation.trust_tier
