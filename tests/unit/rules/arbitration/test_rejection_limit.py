"""The rejection limit: what counts, when a human review is requested, what resets the count (constitution §5.6, §6.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.limits import REJECTION_LIMIT_DEFAULT, TRACE_LAPSE_MS

from tests.support.driver import RULES, Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW


def limited(limit: int | None = 3) -> Core:
    """Return a bus whose action allows `limit` consecutive rejections; None: Gavel's default."""
    return Core(document(rejection_limit=limit))


def reject(core: Core, trace_id: str = "trace-1") -> Decision:
    """Submit a proposal that is refused for lack of facts."""
    return core.decide([core.fact("k.note", "x", trace_id=f"of-{trace_id}")], trace_id=trace_id)


def counts(decisions: list[Decision]) -> list[tuple[int, int]]:
    """Return the outcome and the count of each decision."""
    return [(decision.outcome, decision.consecutive_rejections) for decision in decisions]


def test_consecutive_rejections_are_counted() -> None:
    """Each rejected first decision adds one to its trace's count and states the new count."""
    core = limited(5)
    assert [(REJECTED, 1), (REJECTED, 2), (REJECTED, 3)] == counts([reject(core) for _ in range(3)])
    core.prove()


def test_rejections_are_counted_by_trace() -> None:
    """A rejection counts for its own trace only."""
    core = limited()
    reject(core)
    reject(core)
    assert [(REJECTED, 1)] == counts([reject(core, "trace-2")])


@pytest.mark.parametrize("limit", [1, 2, None])
def test_at_the_limit_a_person_is_called_once(limit: int | None) -> None:
    """The rejection at the limit becomes a review, with the original code as a warning and one notice in its commit."""
    core = limited(limit)
    most = limit if limit is not None else REJECTION_LIMIT_DEFAULT
    decisions = [reject(core) for _ in range(most + 2)]
    assert [REJECTED] * (most - 1) + [REVIEW] + [REJECTED] * 2 == [decision.outcome for decision in decisions]
    review = decisions[most - 1]
    assert (reason_codes.REJECTION_LIMIT, "gavel", ARBITER_VERSION) == (
        review.reason_code,
        review.policy_id,
        review.policy_version,
    )
    assert [reason_codes.NEED_MORE_FACTS] == [warning.code for warning in review.warnings]
    assert (most, False) == (review.consecutive_rejections, review.retry_hint.retryable)
    assert ["order.status"] == list(review.retry_hint.missing_fact_keys)
    (notice,) = core.events_named("NeedsHumanReview")
    assert (review.decision_id, review.state_version + 2) == (notice.causation_id, notice.sequence_number)
    core.prove()


def test_a_trace_under_review_is_closed_and_its_refusals_do_not_count() -> None:
    """Proposals of a trace under review are UNDER_REVIEW and do not count; other traces are not affected."""
    core = limited(2)
    reject(core)
    reject(core)
    under_review = [reject(core) for _ in range(3)]
    assert {(reason_codes.UNDER_REVIEW, 2)} == {(decision.reason_code, decision.consecutive_rejections) for decision in under_review}
    assert reason_codes.NEED_MORE_FACTS == reject(core, "trace-2").reason_code
    core.prove()


def test_a_trace_under_review_may_still_publish() -> None:
    """Facts and observations of a trace under review are recorded."""
    core = limited(1)
    reject(core)
    assert "trace-1" == core.fact("k.value", 1, trace_id="trace-1").trace_id
    assert "trace-1" == core.observe("k.value", 1).trace_id


def test_review_by_a_rule_does_not_count() -> None:
    """NEEDS_HUMAN_REVIEW by a rule leaves the count unchanged, appends no notice, and closes the trace."""
    core = limited()
    reject(core)
    core.observe("order.score", 0.95, evidence=core.tool_result())
    review = core.decide([core.fact("order.status", "delivered")])
    assert (REVIEW, "FRAUD_SUSPECTED", 1) == (review.outcome, review.reason_code, review.consecutive_rejections)
    assert [] == core.events_named("NeedsHumanReview")
    assert reason_codes.UNDER_REVIEW == reject(core).reason_code
    core.prove()


def test_an_approval_resets_the_count() -> None:
    """An approval resets the count of its trace."""
    core = limited()
    reject(core)
    reject(core)
    assert (APPROVED, 0) == counts([core.approve().decision])[0]
    assert (REJECTED, 1) == counts([reject(core)])[0]
    core.prove()


@pytest.mark.parametrize(
    ("rejected_by", "reason_code"),
    [("rules", "TOO_LITTLE"), ("ungoverned", reason_codes.NO_ACTIVE_POLICY), ("params", reason_codes.INVALID_PARAMS)],
)
def test_every_other_rejection_counts(rejected_by: str, reason_code: str) -> None:
    """Rejections by rules, by schemas and for a missing policy count; ungoverned actions have the default limit."""
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
    assert [reason_code, reason_code, reason_codes.REJECTION_LIMIT] == [decision.reason_code for decision in decisions]
    core.prove()


def test_a_conflict_counts() -> None:
    """CONFLICTING_DECISION counts as a rejection."""
    core = limited()
    core.approve(trace_id="winner")
    assert (REJECTED, 1) == counts([core.decide([core.fact("order.status", "delivered")])])[0]


def test_escalation_of_insufficient_tier_requests_facts() -> None:
    """If the limit replaces INSUFFICIENT_EVIDENCE_TIER, the facts are still requested, after the call for a person."""
    core = limited(1)
    core.propose([core.observe("order.status", "delivered", tool="orders-db")])
    assert ["NeedsHumanReview", "FactCollectionRequested"] == [event.event_name for event in core.events[-2:]]
    core.prove()


# Classes


def of_class(core: Core, name: str, **changes: Any) -> Decision:
    """Submit a proposal that is refused for a reason of this class. Each class has a subject of its own."""
    if name == "evidence":
        return core.decide([core.fact("k.note", "x", subject="order/9")], subject="order/9", **changes)
    if name == "conflict":
        if "order/8" not in core.state.conflict_keys:
            core.approve("order/8", trace_id="rival")
        return core.decide([core.fact("order.status", "delivered", subject="order/8")], subject="order/8", **changes)
    return core.decide([core.fact("k.note", "x")], amount=-1, **changes)


def classes(decision: Decision) -> tuple[int, int, int]:
    """Return the decision's counts by class."""
    counts = decision.rejection_counts
    return counts.evidence, counts.policy, counts.conflict


def test_rejections_are_counted_by_class() -> None:
    """A decision has the count of each class and the sum; an approval resets all."""
    core = limited(10)
    counts = [classes(of_class(core, name)) for name in ("evidence", "policy", "conflict", "policy")]
    assert [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 2, 1)] == counts
    assert (0, 0, 0) == classes(core.approve().decision)
    next_rejection = of_class(core, "evidence")
    assert ((1, 0, 0), 1) == (classes(next_rejection), next_rejection.consecutive_rejections)
    core.prove()


@pytest.mark.parametrize("name", ["evidence", "policy", "conflict"])
def test_limit_of_a_class(name: str) -> None:
    """A class with a limit counts separately from `rejection_limit`."""
    core = Core(document(rejection_limit=2, rejection_limits={name: 4}))
    others = {"evidence", "policy", "conflict"} - {name}
    of_class(core, min(others))
    decisions = [of_class(core, name) for _ in range(4)]
    assert [(REJECTED, 2), (REJECTED, 3), (REJECTED, 4), (REVIEW, 5)] == counts(decisions)
    assert reason_codes.REJECTION_LIMIT == decisions[-1].reason_code
    core.prove()


def test_general_limit_counts_the_other_classes() -> None:
    """`rejection_limit` counts the classes without a limit of their own together; Gavel's default limit does if it is not set."""
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
    """A trace's count lapses more than 24 hours after the trace's last event."""
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
    """Any event of the trace, such as a fact, keeps its count from lapsing."""
    core = limited()
    reject(core)
    core.pass_time(TRACE_LAPSE_MS)
    core.fact("k.note", "x", trace_id="trace-1")
    core.pass_time(TRACE_LAPSE_MS)
    assert (REJECTED, 2) == counts([reject(core)])[0]
    core.prove()


def test_a_review_does_not_lapse() -> None:
    """An open review does not lapse with its trace."""
    core = limited(1)
    reject(core)
    core.pass_time(10 * TRACE_LAPSE_MS)
    core.fact("k.note", "x", trace_id="someone-else")
    assert reason_codes.UNDER_REVIEW == reject(core).reason_code
    core.prove()


def test_a_lapsed_trace_leaves_nothing_behind() -> None:
    """A lapsed trace is removed from the state."""
    core = limited()
    for number in range(3):
        reject(core, f"trace-{number}")
        core.tool_result(f"tools-{number}")
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("k.note", "x", trace_id="someone-else")
    assert ({}, {}, {}) == (core.state.traces, core.state.tool_calls, core.state.tool_results)


def test_an_approval_keeps_nothing_of_a_trace_without_evidence() -> None:
    """A trace with count zero and no tool evidence is not in the state."""
    core = limited()
    reject(core)
    core.approve()
    assert {} == core.state.traces


def test_an_approval_keeps_tool_evidence() -> None:
    """An approval resets the count and keeps the trace's tool results."""
    core = limited()
    evidence = core.tool_result()
    reject(core)
    core.approve()
    assert 2 == core.observe("k.value", 1, evidence=evidence).observation.trust_tier
