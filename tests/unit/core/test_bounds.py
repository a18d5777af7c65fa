"""What a state remembers is bounded: at a limit the oldest goes where that approves nothing, or what comes is refused."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import reasons
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, PublishEvent, Recorded, RuleSetAt
from gavel_rules.decider import handle
from gavel_rules.limits import (
    EXTRACTED_FIELDS_MAX,
    READINGS_PER_RESULT_MAX,
    RULE_SETS_PER_ACTION_MAX,
    SHADOWS_PER_ACTION_MAX,
    SOURCES_PER_KEY_MAX,
    TRACE_ENDINGS_MAX,
    TRACE_LAPSE_MS,
    TRACE_TOOL_CALLS_MAX,
    TRACE_TOOL_RESULTS_MAX,
)
from gavel_rules.values import python_to_value

from tests.unit.core.driver import AGENT, SUBJECT, SUCCESS, Core, compiled, document, fact_envelope, observation_envelope

INFERENCE = common_pb2.TRUST_TIER_3_AGENT_INFERENCE
TOOL = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
TRACE = "trace-1"


def call(core: Core, number: int) -> None:
    """A tool call of the trace."""
    called = ToolCall(tool_name="fraud-tool", execution_id=f"exec_{number:012x}")
    core.publish(Envelope(subject=SUBJECT, trace_id=TRACE, producer=AGENT, tool_call=called))


def result_of(number: int, trace_id: str = TRACE) -> Envelope:
    """The result of a tool call, not published yet."""
    answered = ToolResult(tool_name="fraud-tool", execution_id=f"exec_{number:012x}", content_hash="sha256:1")
    return Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_result=answered)


def results(core: Core, count: int) -> list[Envelope]:
    """So many results of one call."""
    call(core, 0)
    return [core.publish(result_of(0)) for _ in range(count)]


def read(core: Core, evidence: Envelope, key: str = "order.score", value: object = 0.1, **changes: Any) -> int:
    """The tier of an observation of a result."""
    return core.observe(key, value, evidence=evidence, **changes).observation.trust_tier


def publishing(core: Core, envelope: Envelope) -> PublishEvent:
    """The command that publishes an event."""
    return PublishEvent(core.admitted(envelope))


def assert_undone(core: Core, command: PublishEvent) -> None:
    """Handling a command that makes room and undoing it leaves the state as it was."""
    before = core.state.digest()
    mark = core.state.mark()
    assert handle(core.state, command, now_ms=core.now_ms).events
    assert before != core.state.digest()
    core.state.undo(mark)
    assert before == core.state.digest()


def test_the_oldest_tool_calls_are_forgotten() -> None:
    """What observes a result of a forgotten call is inference; it is never taken for more than it is."""
    core = Core(document())
    for number in range(TRACE_TOOL_CALLS_MAX):
        call(core, number)
    assert TRACE_TOOL_CALLS_MAX == len(core.state.tool_calls[TRACE])
    one_more = ToolCall(tool_name="fraud-tool", execution_id="exec_ffffffffffff")
    assert_undone(core, publishing(core, Envelope(subject=SUBJECT, trace_id=TRACE, producer=AGENT, tool_call=one_more)))
    call(core, TRACE_TOOL_CALLS_MAX)
    assert len(core.state.tool_calls[TRACE]) < TRACE_TOOL_CALLS_MAX
    oldest, latest = (core.publish(result_of(number)) for number in (0, TRACE_TOOL_CALLS_MAX))
    assert (INFERENCE, TOOL) == (read(core, oldest), read(core, latest))
    core.prove()


def test_results_that_nobody_read_make_room() -> None:
    """At the limit the older of them are forgotten; what an observation rests on is kept, and shows a contradiction as ever."""
    core = Core(document())
    first, second, *_, last = results(core, TRACE_TOOL_RESULTS_MAX)
    assert TOOL == read(core, first)
    assert_undone(core, publishing(core, result_of(0)))
    core.publish(result_of(0))
    assert len(core.state.tool_results[TRACE]) < TRACE_TOOL_RESULTS_MAX
    assert core.state.readings.keys() == core.state.tool_results[TRACE].keys()
    assert (INFERENCE, TOOL) == (read(core, second), read(core, last))
    read(core, first, value=0.9, trace_id="another")
    assert [first.event_id] == list(core.state.contradicted)
    core.prove()


def test_results_that_are_read_are_not_forgotten() -> None:
    """Where observations rest on all of a trace's results one more is refused, until the trace has fallen silent; others go on."""
    core = Core(document())
    for evidence in results(core, TRACE_TOOL_RESULTS_MAX):
        read(core, evidence, "k.note", "x")
    fault = core.fault(publishing(core, result_of(0)))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "new trace" in fault.message)
    core.publish(result_of(0, trace_id="trace-2"))
    core.pass_time(TRACE_LAPSE_MS + 1)
    assert isinstance(core.run(publishing(core, result_of(0))), Recorded)
    assert 1 == len(core.state.tool_results[TRACE])


def test_the_readings_of_a_result_are_bounded() -> None:
    """What could not be compared with later readings is refused; what is compared already may be said again, and contradicted."""
    core = Core(document())
    (evidence,) = results(core, 1)
    for first in range(0, READINGS_PER_RESULT_MAX, EXTRACTED_FIELDS_MAX):
        observed = observation_envelope(f"k.n{first}", 1, evidence=evidence, evidence_hash="sha256:1")
        for number in range(first, first + EXTRACTED_FIELDS_MAX):
            observed.observation.extracted_fields[f"k.n{number}"].CopyFrom(python_to_value(1))
        core.publish(observed)
    assert READINGS_PER_RESULT_MAX == len(core.state.readings[evidence.event_id])
    one_more = observation_envelope("k.more", 1, evidence=evidence, evidence_hash="sha256:1")
    fault = core.fault(publishing(core, one_more))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, evidence.event_id in fault.message)
    assert TOOL == read(core, evidence, "k.n0", 1)
    assert {} == core.state.contradicted
    read(core, evidence, "k.n0", True)
    assert [evidence.event_id] == list(core.state.contradicted)
    assert TOOL == read(core, core.tool_result(), "k.more", 1)
    core.prove()


@pytest.mark.parametrize("values", [("x" * 10_000, "x" * 9_999 + "y"), ({"a": [1, 2]}, {"a": [1, 2.5]}), (1, True), (0, False), ("1", 1)])
def test_readings_differ_as_their_values_do(values: tuple[object, object]) -> None:
    """What is remembered of a long value is short, and still tells it from others; a boolean is no number."""
    core = Core(document())
    (evidence,) = results(core, 1)
    read(core, evidence, "k.value", values[0])
    read(core, evidence, "k.value", values[0])
    assert ({}, True) == (core.state.contradicted, len(str(core.state.readings[evidence.event_id])) < 200)
    read(core, evidence, "k.value", values[1])
    assert [evidence.event_id] == list(core.state.contradicted)


def test_the_oldest_hopeless_notes_are_forgotten() -> None:
    """A trace that was told so very often is judged anew where it was told first, and told again; what a person rejected stays."""
    core = Core(document())
    status = core.fact("order.status", "delivered", subject="order/0")
    core.fact("order.score", 0.95, subject="order/0")
    rejected = core.decide([status], subject="order/0")
    assert decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW == rejected.outcome
    core.resolve(core.by_id[rejected.decision_id], fact_pb2.REVIEW_VERDICT_REJECT)
    refused = 0
    while refused < TRACE_ENDINGS_MAX:
        refused += 1
        subject = f"order/{refused}"
        assert core.decide([core.fact("order.status", "cancelled", subject=subject)], subject=subject).terminal
        if refused % 500 == 0:
            core.approve(f"order/{refused}-b")  # lest the many rejections call a person
    status = core.fact("order.status", "cancelled", subject="order/last")
    before = len(core.state.ended[TRACE])
    assert core.decide([status], subject="order/last").terminal
    assert len(core.state.ended[TRACE]) < before
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([status], subject="order/0").reason_code
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([status], subject=f"order/{TRACE_ENDINGS_MAX}").reason_code
    again = core.decide([core.fact("order.status", "cancelled", subject="order/1")], subject="order/1")
    assert ("ORDER_CANCELLED", True) == (again.reason_code, again.terminal)
    core.prove()


def test_what_an_agent_says_at_length_is_not_kept() -> None:
    """Of a refusal for good with long params only what can lift it is remembered, and that says the same as the whole of it."""
    core = Core(document())
    status = core.fact("order.status", "cancelled")
    params = {"amount": 1, "note": "n" * 60_000}
    for trace_id, sent in ((TRACE, params), ("trace-2", {"amount": 1})):
        assert core.decide([status], params=sent, trace_id=trace_id).terminal
    (long,), (short,) = (core.state.ended[trace_id].values() for trace_id in (TRACE, "trace-2"))
    assert len(long.decision.content) < len(short.decision.content)
    assert (short.rests_on, short.digests) == (long.rests_on, long.digests)
    assert reasons.NO_FEASIBLE_PROPOSAL == core.decide([status], params=params).reason_code
    status = core.fact("order.status", "delivered")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([status], params=params).outcome
    core.prove()


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_the_sources_of_a_key_are_bounded(tier: int) -> None:
    """One source too many is refused and forgets nobody; those that are known speak on, and so do all of the other tiers."""
    core = Core(document())

    def said(source: str, of_tier: int = tier, key: str = "order.score") -> PublishEvent:
        if of_tier == 1:
            return publishing(core, fact_envelope(key, 0.1, source=source))
        evidence = core.tool_result(tool_name=source) if of_tier == 2 else None
        return publishing(core, observation_envelope(key, 0.1, evidence=evidence, tool=source))

    for number in range(SOURCES_PER_KEY_MAX):
        assert isinstance(core.run(said(f"source-{number}")), Recorded)
    known = core.state.evidence[SUBJECT]["order.score"]
    fault = core.fault(said("one-more"))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "order.score of order/1" in fault.message)
    assert known == core.state.evidence[SUBJECT]["order.score"]
    assert isinstance(core.run(said("source-0")), Recorded)
    for other in {1, 2, 3} - {tier}:
        assert isinstance(core.run(said("one-more", other)), Recorded)
    assert isinstance(core.run(said("one-more", key="order.other")), Recorded)
    core.prove()


def test_derived_facts_are_never_too_many() -> None:
    """The fact of a report is taken whoever else has stated its key: its decision would have no end without it."""
    core = Core(document())
    for number in range(SOURCES_PER_KEY_MAX):
        core.fact("execution.refund.create.status", "x", source=f"source-{number}")
    core.derive(core.report(core.start(core.approve()), SUCCESS))
    assert {} == core.state.decisions
    core.prove()


@pytest.mark.parametrize(("shadow", "limit"), [(False, RULE_SETS_PER_ACTION_MAX), (True, SHADOWS_PER_ACTION_MAX)])
def test_the_rule_sets_of_an_action_are_bounded(shadow: bool, limit: int) -> None:
    """One too many is not put in force, nor let watch, whoever it is; another version of one that is there is."""
    core = Core()

    def activating(name: str, version: int = 1, **changes: Any) -> Any:
        text = document(rule_set=name, version=version, **changes)
        core.run(DeployRuleSet(core.new_id(), compiled(text), text))
        return ActivateRuleSet(core.new_id(), name, version, None, shadow)

    for number in range(limit):
        assert isinstance(core.run(activating(f"team-{number}")), RuleSetAt)
    fault = core.fault(activating("one-more"))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "which is the limit" in fault.message)
    assert isinstance(core.run(activating("team-0", 2)), RuleSetAt)
    assert isinstance(core.run(activating("elsewhere", action_type="refund.reverse")), RuleSetAt)
    core.prove()
