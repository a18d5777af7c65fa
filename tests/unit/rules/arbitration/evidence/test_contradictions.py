"""CONFLICTING_EVIDENCE: if observations read one tool result differently, a person has to look at it (constitution §4.6)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolResult
from gavel_rules import reason_codes
from gavel_rules.limits import TRACE_LAPSE_MS, TRACE_TOOL_RESULTS_MAX
from gavel_rules.state.transitions.traces import LAPSED_TRACES_PER_EVENT

from tests.support.driver import AGENT, SUBJECT, Core, document
from tests.support.hashes import sha256_of
from tests.support.state.snapshots import page_out, restore, tables

REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
APPROVED = decision_pb2.OUTCOME_APPROVED
OPTIONAL_SCORE = {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 3_600_000, "optional": True}


@pytest.fixture
def core() -> Core:
    """A bus whose rules read an observed score."""
    facts = {"status": {"key": "order.status", "type": "string", "max_age_ms": 10 * TRACE_LAPSE_MS}, "score": OPTIONAL_SCORE}
    rules: list[dict[str, Any]] = [{"id": "fine", "when": "facts.status == 'delivered'", "effect": "approve"}]
    return Core(document(facts, rules))


def verdict(decision: Decision) -> tuple[int, str]:
    """Return the outcome and the reason code."""
    return decision.outcome, decision.reason_code


def test_contradicting_readings_call_a_person(core: Core) -> None:
    """Two values of one key read in one result request a human review, which is not counted as a rejection; the trace is closed."""
    status = core.fact("order.status", "delivered")
    evidence = core.tool_result()
    core.observe("order.score", 0.1, evidence=evidence)
    core.observe("order.score", 0.2, evidence=evidence)
    decision = core.decide([status])
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(decision)
    assert (0, False, "gavel") == (decision.consecutive_rejections, decision.retry_hint.retryable, decision.policy_id)
    assert [f"observations read different values of {SUBJECT} order.score in {evidence.event_id}"] == [
        warning.message for warning in decision.warnings
    ]
    assert reason_codes.UNDER_REVIEW == core.decide([status]).reason_code
    core.prove()


def test_reading_of_another_trace_counts(core: Core) -> None:
    """An observation in another trace can contradict, although it is no evidence for the decision."""
    evidence = core.tool_result()
    core.observe("order.score", 0.1, evidence=evidence)
    assert 3 == core.observe("order.score", 0.2, evidence=evidence, trace_id="someone-else").observation.trust_tier
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(core.decide([core.fact("order.status", "delivered")]))
    core.prove()


def test_every_key_of_a_cited_result_counts(core: Core) -> None:
    """Citing an observation requires its tool result to be free of contradictions, even about a key that no rule reads."""
    status = core.fact("order.status", "delivered")
    evidence = core.tool_result()
    cited = core.observe("k.agreed", 1, evidence=evidence)
    core.observe("k.other", 1, evidence=evidence)
    core.observe("k.other", 2, evidence=evidence)
    assert APPROVED == core.decide([status], trace_id="trace-2").outcome
    core.pass_time(10_000)
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(core.decide([status, cited]))
    core.prove()


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(0.5, 0.5, True), (1, True, False), ("a", "b", False), ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True), ([True], [1], False)],
)
def test_equality_of_values(core: Core, first: object, second: object, same: bool) -> None:
    """Values are compared as JSON; a boolean differs from a number."""
    status = core.fact("order.status", "delivered")
    evidence = core.tool_result()
    cited = core.observe("k.value", first, evidence=evidence)
    core.observe("k.value", second, evidence=evidence)
    assert (APPROVED if same else REVIEW) == core.decide([status, cited]).outcome
    core.prove()


def test_other_subjects_and_other_results_do_not_contradict(core: Core) -> None:
    """One result may hold values of several subjects. Two results may differ: the later one is selected."""
    evidence = core.tool_result()
    core.observe("order.score", 0.1, evidence=evidence)
    core.observe("order.score", 0.9, evidence=evidence, subject="order/2")
    core.observe("order.score", 0.3, evidence=core.tool_result(content_hash=sha256_of("2")))
    core.observe("order.score", 0.4)
    assert APPROVED == core.decide([core.fact("order.status", "delivered")]).outcome
    core.prove()


def test_unused_contradictions_do_not_matter(core: Core) -> None:
    """A contradicted result does not affect a proposal that neither cites nor selects it."""
    evidence = core.tool_result()
    core.observe("k.elsewhere", 1, evidence=evidence)
    core.observe("k.elsewhere", 2, evidence=evidence)
    assert APPROVED == core.decide([core.fact("order.status", "delivered")]).outcome


def test_new_evidence_resolves_a_contradiction(core: Core) -> None:
    """A later result replaces the contradicted one: another trace that rests on the later result is not stopped."""
    status = core.fact("order.status", "delivered")
    evidence = core.tool_result()
    for value in (0.1, 0.2):
        core.observe("order.score", value, evidence=evidence)
    assert REVIEW == core.decide([status]).outcome
    core.pass_time(1)
    core.observe("order.score", 0.3, evidence=core.tool_result("trace-2", content_hash=sha256_of("2")), trace_id="trace-2")
    assert APPROVED == core.decide([status], trace_id="trace-2").outcome
    core.prove()


def lapse(core: Core) -> None:
    """Let every trace of the bus lapse, and record an event that makes it forget them."""
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("k.note", "x", trace_id="someone-else")


@pytest.mark.parametrize("days", [0, 1, 3])
def test_a_contradiction_lasts_as_long_as_its_readings_are_evidence(days: int) -> None:
    """Readings that are evidence for days contradict each other for days, however long their trace is silent."""
    facts = {"score": {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 10 * TRACE_LAPSE_MS}}
    core = Core(document(facts, [{"id": "low", "when": "facts.score < 0.5", "effect": "approve"}]))
    evidence = core.tool_result()
    for value in (0.9, 0.1):
        core.observe("order.score", value, evidence=evidence)
    for _ in range(days):
        lapse(core)
    status = core.fact("order.status", "delivered")
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(
        core.decide([status], trace_id="trace-2", max_fact_age_ms=10 * TRACE_LAPSE_MS)
    )
    core.prove()


def test_a_reading_contradicts_evidence_of_a_lapsed_trace(core: Core) -> None:
    """A reading that comes after its trace has lapsed is inference, and still contradicts the reading that is evidence."""
    evidence = core.tool_result()
    cited = core.observe("order.score", 0.1, evidence=evidence)
    lapse(core)
    assert 3 == core.observe("order.score", 0.2, evidence=evidence).observation.trust_tier
    status = core.fact("order.status", "delivered")
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(core.decide([status, cited]))
    core.prove()


def test_readings_lapse_with_the_last_of_them_that_is_evidence(core: Core) -> None:
    """The readings of a result of a lapsed trace take no room once later observations have replaced them all."""
    evidence = core.tool_result()
    for key, value in (("order.score", 0.1), ("order.score", 0.2), ("k.other", 1)):
        core.observe(key, value, evidence=evidence)
    lapse(core)
    tables = core.state.store.tool_result_tables
    assert [] == list(core.state.readings)
    assert 2 == len(tables.readings_of(evidence.event_id) or ())
    later = core.tool_result("trace-2", content_hash=sha256_of("2"))
    core.observe("order.score", 0.3, evidence=later, trace_id="trace-2")
    assert core.state.contradiction_of(evidence.event_id)
    core.observe("k.other", 2, evidence=later, trace_id="trace-2")
    assert [later.event_id] == list(core.state.readings)
    assert ("", None) == (core.state.contradiction_of(evidence.event_id), tables.readings_of(evidence.event_id))
    core.prove()


def test_results_without_evidence_lapse_with_their_trace(core: Core) -> None:
    """The readings of a result take no room once its trace has lapsed, if later observations have replaced them before."""
    evidence, later = core.tool_result(), core.tool_result("trace-2", content_hash=sha256_of("2"))
    core.observe("order.score", 0.1, evidence=evidence)
    core.observe("order.score", 0.3, evidence=later, trace_id="trace-2")
    lapse(core)
    tables = core.state.store.tool_result_tables
    assert [None, {"order/1 order.score"}] == [(tables.readings_of(one.event_id) or {}).keys() or None for one in (evidence, later)]
    core.prove()


def use_again(core: Core, evidence: Envelope, trace_id: str) -> None:
    """Publish another result of the event_id, as after its idempotency window."""
    result = ToolResult(tool_name="fraud-tool", content_hash=sha256_of("1"))
    core.publish(Envelope(event_id=evidence.event_id, subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_result=result))


@pytest.mark.parametrize("trace_id", ["trace-1", "trace-2"])
def test_readings_contradict_those_of_a_later_result_with_the_event_id(core: Core, trace_id: str) -> None:
    """If an event_id is used for another result, in the same trace or another one, earlier readings that are evidence still count."""
    evidence = core.tool_result()
    cited = core.observe("order.score", 0.1, evidence=evidence)
    use_again(core, evidence, trace_id)
    core.observe("order.score", 0.2, evidence=evidence)
    status = core.fact("order.status", "delivered")
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(core.decide([status, cited]))


def test_a_bus_of_version_2_forgets_the_readings_of_an_event_id_that_is_used_again() -> None:
    """The digests of a bus of arbiter version 2 stay what they were: a later result of an event_id has none of the earlier readings."""
    core = Core(document(), arbiter_version=2)
    evidence = core.tool_result()
    core.observe("order.score", 0.1, evidence=evidence)
    use_again(core, evidence, "trace-2")
    assert {evidence.event_id: {}} == core.state.readings
    assert tables(core.state) == tables(restore(core.state))


@pytest.mark.parametrize("first", ["a", "c"])
def test_a_result_lapses_with_the_trace_that_used_its_event_id_last(core: Core, first: str) -> None:
    """Readings that are no evidence are forgotten with the trace of the last result of their event_id, on a restored bus as well."""
    evidence = core.tool_result(first)
    core.pass_time(1)
    use_again(core, evidence, "b")
    core.observe("k.note", 0.1, evidence=evidence, trace_id="other")
    core.observe("k.note", 0.2, evidence=core.tool_result("other"), trace_id="other")
    restored = restore(core.state)
    assert tables(core.state) == tables(restored)
    head = core.state.head
    core.pass_time(TRACE_LAPSE_MS - 1)
    core.tool_result(first)
    core.pass_time(2)
    core.observe("k.other", 0.1, evidence=evidence, trace_id="other")
    assert [first] == list(core.state.traces)
    assert evidence.event_id not in core.state.readings
    for event in core.events[head:]:
        restored.apply(event)
    assert tables(core.state) == tables(restored)


def test_a_full_trace_uses_an_event_id_again(core: Core) -> None:
    """A result whose event_id is that of an unread one, which makes room for it, has one trace, on a restored bus as well."""
    evidence, *_ = [core.tool_result("a") for _ in range(TRACE_TOOL_RESULTS_MAX)]
    use_again(core, evidence, "a")
    restored = restore(core.state)
    assert tables(core.state) == tables(restored)
    head = core.state.head
    use_again(core, evidence, "b")
    for event in core.events[head:]:
        restored.apply(event)
    assert tables(core.state) == tables(restored)
    assert ["b"] == [trace for trace, results in core.state.tool_results.items() if evidence.event_id in results]


@pytest.mark.parametrize("is_contradicted", [False, True])
def test_lapsed_readings_that_are_not_forgotten_yet_contradict_nothing(core: Core, is_contradicted: bool) -> None:
    """Readings of a lapsed trace that are no evidence do not contradict, while the bus is still forgetting traces that lapsed before."""
    for number in range(4 * LAPSED_TRACES_PER_EVENT):
        result = ToolResult(tool_name="fraud-tool", content_hash=sha256_of("1"))
        core.publish(Envelope(subject=SUBJECT, trace_id=f"t{number}", producer=AGENT, tool_result=result))
    core.pass_time(1)
    evidence = core.tool_result()
    cited = core.observe("k.note", 0.1, evidence=evidence)
    if is_contradicted:
        core.observe("k.note", 0.2, evidence=evidence)
    core.pass_time(TRACE_LAPSE_MS - 1)
    core.observe("k.note", 0.3, evidence=core.tool_result("trace-2", content_hash=sha256_of("2")), trace_id="trace-2")
    core.pass_time(2)
    status = core.fact("order.status", "delivered", trace_id="trace-2")
    assert evidence.event_id in core.state.readings
    if not is_contradicted:
        cited = core.observe("k.note", 0.4, evidence=evidence, trace_id="trace-3")
    assert (APPROVED, "") == verdict(core.decide([status, cited], trace_id="trace-3"))
    core.prove()


def test_readings_in_pages_contradict(core: Core) -> None:
    """Readings of a lapsed trace that have left the memory contradict later ones, and are forgotten with the last of their evidence."""
    table = core.state.store.tool_result_tables.outliving_results
    evidence = core.tool_result()
    cited = core.observe("order.score", 0.1, evidence=evidence)
    lapse(core)
    page_out(core.state, lambda: True)
    assert {} == table.changes
    core.observe("order.score", 0.2, evidence=evidence)
    page_out(core.state, lambda: True)
    assert {} == table.changes
    status = core.fact("order.status", "delivered")
    assert (REVIEW, reason_codes.CONFLICTING_EVIDENCE) == verdict(core.decide([status, cited]))
    later = core.tool_result("trace-2", content_hash=sha256_of("2"))
    for trace_id in ("trace-2", "trace-3"):
        core.observe("order.score", 0.3, evidence=later, trace_id=trace_id)
    assert "" == core.state.contradiction_of(evidence.event_id)
    page_out(core.state, lambda: True)
    assert ({}, None) == (table.changes, core.state.store.tool_result_tables.readings_of(evidence.event_id))
    core.prove()
