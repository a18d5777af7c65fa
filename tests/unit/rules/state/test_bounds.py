"""Bounds of the state: at a limit the oldest entries are removed if that approves nothing, else the event is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import reason_codes
from gavel_rules.commands import (
    ActivateRuleSet,
    Command,
    DeactivateRuleSet,
    DeployRuleSet,
    EventAnswer,
    Fault,
    PublishEvent,
    RuleSetPosition,
    UpgradeBus,
)
from gavel_rules.decider import handle
from gavel_rules.events.recorded_event import read_event
from gavel_rules.limits import (
    EXTRACTED_FIELDS_MAX,
    READINGS_PER_RESULT_MAX,
    REFUSED_TRACES_MAX,
    RULE_SETS_PER_ACTION_MAX,
    SHADOWS_PER_ACTION_MAX,
    SOURCES_PER_KEY_MAX,
    TRACE_CLOSED_ACTIONS_MAX,
    TRACE_LAPSE_MS,
    TRACE_TOOL_CALLS_MAX,
    TRACE_TOOL_RESULTS_MAX,
)
from gavel_rules.state.records import Rejections
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.traces import LAPSED_TRACES_PER_EVENT, count_rejections, forget_lapsed_traces
from gavel_rules.values import python_to_value
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.driver import (
    AGENT,
    START_MS,
    SUBJECT,
    SUCCESS,
    Core,
    compile_cached,
    document,
    fact_envelope,
    observation_envelope,
    replay_log,
)
from tests.support.hashes import sha256_of
from tests.support.state.snapshots import restore, tables

INFERENCE = common_pb2.TRUST_TIER_3_AGENT_INFERENCE
TOOL = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
TRACE = "trace-1"


def call_of(number: int, trace_id: str = TRACE) -> Envelope:
    """Return a tool call."""
    tool_call = ToolCall(tool_name="fraud-tool", execution_id=f"exec_{number:012x}")
    return Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_call=tool_call)


def call(core: Core, number: int) -> None:
    """Publish a tool call of the trace."""
    core.publish(call_of(number))


def result_of(number: int, trace_id: str = TRACE) -> Envelope:
    """Return the result of a tool call."""
    tool_result = ToolResult(tool_name="fraud-tool", execution_id=f"exec_{number:012x}", content_hash=sha256_of("1"))
    return Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_result=tool_result)


def results(core: Core, count: int) -> list[Envelope]:
    """Publish `count` results of one call."""
    call(core, 0)
    return [core.publish(result_of(0)) for _ in range(count)]


def read(core: Core, evidence: Envelope, key: str = "order.score", value: object = 0.1, **changes: Any) -> int:
    """Publish an observation of a result, and return its tier."""
    return core.observe(key, value, evidence=evidence, **changes).observation.trust_tier


def publishing(core: Core, envelope: Envelope) -> PublishEvent:
    """Return the command that publishes an event."""
    return PublishEvent(core.admit(envelope))


def assert_undone(core: Core, command: PublishEvent) -> None:
    """Check that handling a command changes the state and undoing it restores it."""
    before = core.state.digest()
    mark = core.state.mark()
    assert handle(core.state, command, now_ms=core.now_ms).envelopes
    assert before != core.state.digest()
    core.state.undo(mark)
    assert before == core.state.digest()


def test_the_oldest_tool_calls_are_forgotten() -> None:
    """An observation of the result of a forgotten call is inference."""
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


def test_unread_results_are_forgotten_first() -> None:
    """At the limit older unread results are removed; read results stay and still show contradictions."""
    core = Core(document())
    first, second, *_, last = results(core, TRACE_TOOL_RESULTS_MAX)
    assert TOOL == read(core, first)
    assert_undone(core, publishing(core, result_of(0)))
    core.publish(result_of(0))
    assert len(core.state.tool_results[TRACE]) < TRACE_TOOL_RESULTS_MAX
    assert core.state.readings.keys() == core.state.tool_results[TRACE].keys()
    assert (INFERENCE, TOOL) == (read(core, second), read(core, last))
    read(core, first, value=0.9, trace_id="another")
    assert [first.event_id] == list(core.state.contradictions)
    core.prove()


def test_results_that_are_read_are_not_forgotten() -> None:
    """If all results of a trace are read, one more is rejected until the trace lapses; other traces are not affected."""
    core = Core(document())
    for evidence in results(core, TRACE_TOOL_RESULTS_MAX):
        read(core, evidence, "k.note", "x")
    fault = core.fault(publishing(core, result_of(0)))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "new trace" in fault.message)
    core.publish(result_of(0, trace_id="trace-2"))
    core.pass_time(TRACE_LAPSE_MS + 1)
    assert isinstance(core.run(publishing(core, result_of(0))), EventAnswer)
    assert 1 == len(core.state.tool_results[TRACE])


def test_results_that_are_read_are_not_forgotten_when_their_event_id_is_used_again() -> None:
    """A result that was read before another trace used its event_id counts as read there, until that trace lapses."""
    core = Core(document())
    (evidence,) = results(core, 1)
    read(core, evidence)
    again = result_of(0, trace_id="trace-2")
    again.event_id = evidence.event_id
    for envelope in (again, *(result_of(0, trace_id="trace-2") for _ in range(TRACE_TOOL_RESULTS_MAX))):
        core.publish(envelope)
    assert evidence.event_id in core.state.tool_results["trace-2"]
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("order.status", "delivered", trace_id="other")
    assert ({}, {}) == (core.state.tool_results, core.state.readings)


def test_the_readings_of_a_result_are_bounded() -> None:
    """A new reading beyond the limit is rejected; a known one may be repeated and contradicted."""
    core = Core(document())
    (evidence,) = results(core, 1)
    for first in range(0, READINGS_PER_RESULT_MAX, EXTRACTED_FIELDS_MAX):
        observation = observation_envelope(f"k.n{first}", 1, evidence=evidence, evidence_hash=sha256_of("1"))
        for number in range(first, first + EXTRACTED_FIELDS_MAX):
            observation.observation.extracted_fields[f"k.n{number}"].CopyFrom(python_to_value(1))
        core.publish(observation)
    assert READINGS_PER_RESULT_MAX == len(core.state.readings[evidence.event_id])
    one_more = observation_envelope("k.more", 1, evidence=evidence, evidence_hash=sha256_of("1"))
    fault = core.fault(publishing(core, one_more))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, evidence.event_id in fault.message)
    assert TOOL == read(core, evidence, "k.n0", 1)
    assert {} == core.state.contradictions
    read(core, evidence, "k.n0", True)
    assert [evidence.event_id] == list(core.state.contradictions)
    assert TOOL == read(core, core.tool_result(), "k.more", 1)
    core.prove()


@pytest.mark.parametrize("values", [("x" * 10_000, "x" * 9_999 + "y"), ({"a": [1, 2]}, {"a": [1, 2.5]}), (1, True), (0, False), ("1", 1)])
def test_readings_differ_as_their_values_do(values: tuple[object, object]) -> None:
    """Long values are stored as hashes that differ as the values do; a boolean differs from a number."""
    core = Core(document())
    (evidence,) = results(core, 1)
    read(core, evidence, "k.value", values[0])
    read(core, evidence, "k.value", values[0])
    assert ({}, True) == (core.state.contradictions, len(str(core.state.readings[evidence.event_id])) < 200)
    read(core, evidence, "k.value", values[1])
    assert [evidence.event_id] == list(core.state.contradictions)


def test_the_oldest_hopeless_notes_are_forgotten() -> None:
    """At the limit the oldest actions closed by rules are removed; those closed by a person stay."""
    core = Core(document())
    status = core.fact("order.status", "delivered", subject="order/0")
    core.fact("order.score", 0.95, subject="order/0")
    rejected = core.decide([status], subject="order/0")
    assert decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW == rejected.outcome
    core.resolve(core.by_id[rejected.decision_id], fact_pb2.REVIEW_VERDICT_REJECT)
    rejections = 0
    while rejections < TRACE_CLOSED_ACTIONS_MAX:
        rejections += 1
        subject = f"order/{rejections}"
        assert core.decide([core.fact("order.status", "cancelled", subject=subject)], subject=subject).terminal
        if rejections % 500 == 0:
            core.approve(f"order/{rejections}-b")  # resets the count of rejections
    status = core.fact("order.status", "cancelled", subject="order/last")
    before = len(core.state.closed_actions[TRACE])
    assert core.decide([status], subject="order/last").terminal
    assert len(core.state.closed_actions[TRACE]) < before
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([status], subject="order/0").reason_code
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([status], subject=f"order/{TRACE_CLOSED_ACTIONS_MAX}").reason_code
    decision = core.decide([core.fact("order.status", "cancelled", subject="order/1")], subject="order/1")
    assert ("ORDER_CANCELLED", True) == (decision.reason_code, decision.terminal)
    core.prove()


def test_closed_action_stores_few_fields() -> None:
    """A closed action with long params stores only the fields that can reopen it, as the whole decision has them."""
    core = Core(document())
    status = core.fact("order.status", "cancelled")
    params = {"amount": 1, "note": "n" * 60_000}
    for trace_id, proposal_params in ((TRACE, params), ("trace-2", {"amount": 1})):
        assert core.decide([status], params=proposal_params, trace_id=trace_id).terminal
    (long,), (short,) = (core.state.closed_actions[trace_id].values() for trace_id in (TRACE, "trace-2"))
    assert len(long.decision.content) < len(short.decision.content)
    assert (short.rests_on, short.digests) == (long.rests_on, long.digests)
    assert reason_codes.NO_FEASIBLE_PROPOSAL == core.decide([status], params=params).reason_code
    status = core.fact("order.status", "delivered")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([status], params=params).outcome
    core.prove()


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_the_sources_of_a_key_are_bounded(tier: int) -> None:
    """One source too many is rejected and replaces none; known sources and other tiers are not affected."""
    core = Core(document())

    def statement(source: str, of_tier: int = tier, key: str = "order.score") -> PublishEvent:
        if of_tier == 1:
            return publishing(core, fact_envelope(key, 0.1, source=source))
        evidence = core.tool_result(tool_name=source) if of_tier == 2 else None
        return publishing(core, observation_envelope(key, 0.1, evidence=evidence, tool=source))

    for number in range(SOURCES_PER_KEY_MAX):
        assert isinstance(core.run(statement(f"source-{number}")), EventAnswer)
    candidates = core.state.evidence_of(SUBJECT)["order.score"]
    fault = core.fault(statement("one-more"))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "order.score of order/1" in fault.message)
    assert candidates == core.state.evidence_of(SUBJECT)["order.score"]
    assert isinstance(core.run(statement("source-0")), EventAnswer)
    for other in {1, 2, 3} - {tier}:
        assert isinstance(core.run(statement("one-more", other)), EventAnswer)
    assert isinstance(core.run(statement("one-more", key="order.other")), EventAnswer)
    core.prove()


def test_derived_facts_are_never_too_many() -> None:
    """A derived fact is accepted beyond the limit of sources: without it its decision would never end."""
    core = Core(document())
    for number in range(SOURCES_PER_KEY_MAX):
        core.fact("execution.refund.create.status", "x", source=f"source-{number}")
    core.derive(core.report(core.start(core.approve()), SUCCESS))
    assert {} == core.state.decisions
    core.prove()


@pytest.mark.parametrize(("shadow", "limit"), [(False, RULE_SETS_PER_ACTION_MAX), (True, SHADOWS_PER_ACTION_MAX)])
def test_the_rule_sets_of_an_action_are_bounded(shadow: bool, limit: int) -> None:
    """One rule set too many is neither activated nor shadowed; another version of a known one is."""
    core = Core()

    def activating(name: str, version: int = 1, **changes: Any) -> Any:
        text = document(rule_set=name, version=version, **changes)
        core.run(DeployRuleSet(core.new_id(), compile_cached(text), text))
        return ActivateRuleSet(core.new_id(), name, version, None, shadow)

    for number in range(limit):
        assert isinstance(core.run(activating(f"team-{number}")), RuleSetPosition)
    fault = core.fault(activating("one-more"))
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "which is the limit" in fault.message)
    assert isinstance(core.run(activating("team-0", 2)), RuleSetPosition)
    assert isinstance(core.run(activating("elsewhere", action_type="refund.reverse")), RuleSetPosition)
    core.prove()


@pytest.mark.parametrize("shadow_is_last", [False, True])
def test_shadows_of_the_actions_that_they_would_give_up_are_bounded(shadow_is_last: bool) -> None:
    """A shadow counts for the actions of the active version too, whether the shadow or that version is activated last."""
    core = Core()

    def activating(name: str, version: int, shadow: bool, **changes: Any) -> ActivateRuleSet:
        text = document(rule_set=name, version=version, **changes)
        core.run(DeployRuleSet(core.new_id(), compile_cached(text), text))
        return ActivateRuleSet(core.new_id(), name, version, None, shadow)

    def activate_both(name: str) -> list[ActivateRuleSet]:
        commands = [activating(name, 1, False), activating(name, 2, True, action_type=f"{name}.create")]
        return commands if shadow_is_last else commands[::-1]

    for number in range(SHADOWS_PER_ACTION_MAX):
        for command in activate_both(f"team-{number}"):
            assert isinstance(core.run(command), RuleSetPosition)
    first, last = activate_both("one-more")
    core.run(first)
    fault = core.fault(last)
    assert (error_pb2.ERROR_REASON_WRONG_STATE, True) == (fault.reason, "other shadows watch refund.create" in fault.message)
    core.run(DeactivateRuleSet(core.new_id(), "team-0", None, shadow=True))
    assert isinstance(core.run(last), RuleSetPosition)
    assert SHADOWS_PER_ACTION_MAX == len(core.state.shadows_by_action["refund.create"])
    core.prove()


@pytest.mark.parametrize("shadow", [False, True])
def test_an_action_with_too_many_shadows_gets_new_versions(shadow: bool) -> None:
    """A bus of version 2 may have more shadows of an action than later ones: after an upgrade, activations that add none succeed."""
    core = Core(arbiter_version=2)

    def activating(name: str, version: int, shadow: bool, **changes: Any) -> ActivateRuleSet:
        text = document(rule_set=name, version=version, **changes)
        core.run(DeployRuleSet(core.new_id(), compile_cached(text), text))
        return ActivateRuleSet(core.new_id(), name, version, None, shadow)

    for number in range(SHADOWS_PER_ACTION_MAX + 1):
        core.run(activating(f"team-{number}", 1, False))
        core.run(activating(f"team-{number}", 2, True, action_type=f"team-{number}.create"))
    assert isinstance(core.run(UpgradeBus(core.new_id(), 2, 3, "ada", "shadows")), EventAnswer)
    assert SHADOWS_PER_ACTION_MAX + 1 == len(core.state.shadows_by_action["refund.create"])
    assert isinstance(core.run(activating("team-0", 3, shadow)), RuleSetPosition)
    core.run(activating("one-more", 1, False))
    fault = core.fault(activating("one-more", 2, True))
    assert "4 other shadows watch refund.create" in fault.message
    core.prove()


def test_traces_that_lapse_together_are_forgotten_in_steps() -> None:
    """One event forgets LAPSED_TRACES_PER_EVENT traces that have lapsed; a replay and a start from a snapshot forget the same."""
    core = Core(document())
    count = 2 * LAPSED_TRACES_PER_EVENT + 10
    for number in range(count):
        core.publish(result_of(0, trace_id=f"t{number}"))
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("order.status", "delivered", trace_id="other")
    assert count - LAPSED_TRACES_PER_EVENT == len(core.state.traces)
    restored = restore(core.state)
    assert core.state.digest() == restored.digest() == replay_log(core.bus, core.records).state.digest()
    mark, digest = core.state.mark(), core.state.digest()
    core.state.apply(next_fact(core))
    restored.apply(next_fact(core))
    assert (10, restored.digest()) == (len(core.state.traces), core.state.digest())
    core.state.undo(mark)
    assert digest == core.state.digest()
    for left in (10, 0):
        core.pass_time(1)
        core.fact("order.status", "delivered", trace_id="other")
        assert left == len(core.state.traces) == len(core.state.tool_results) == len(core.state.store.trace_lapses)
    core.prove()


def next_fact(core: Core) -> Envelope:
    """Return a fact that the log does not have, recorded a moment after its last event."""
    envelope = Envelope.FromString(core.records[-1].envelope)
    envelope.sequence_number += 1
    envelope.recorded_at.FromMilliseconds(core.now_ms + 1)
    return envelope


def test_a_bus_of_version_2_forgets_all_lapsed_traces_at_once() -> None:
    """The digests of a bus of arbiter version 2 stay what they were: its next event forgets every trace that has lapsed."""
    core = Core(document(), arbiter_version=2)
    for number in range(LAPSED_TRACES_PER_EVENT + 10):
        core.publish(result_of(0, trace_id=f"t{number}"))
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.fact("order.status", "delivered", trace_id="other")
    assert {} == core.state.traces
    core.prove()


@pytest.mark.parametrize("lapsed", [1, 2 * LAPSED_TRACES_PER_EVENT])
def test_lapsed_refusals_displace_no_others(lapsed: int) -> None:
    """Beyond the limit of traces with refusals no trace is forgotten as long as some have lapsed, which later events forget."""
    store = Store("orders")

    def refuse(trace_id: str) -> None:
        store.head += 1
        proposal = read_event(Envelope(event_id="p", trace_id=trace_id, producer=AGENT, proposal=Proposal()))
        count_rejections(store, proposal, Rejections(0, 1, 0), "", "")

    store.recorded_at_ms = START_MS
    for number in range(lapsed):
        refuse(f"lapsed-{number}")
    store.recorded_at_ms += 1
    others = [f"other-{number}" for number in range(REFUSED_TRACES_MAX - lapsed)]
    for trace_id in others:
        refuse(trace_id)
    store.recorded_at_ms = START_MS + TRACE_LAPSE_MS + 1
    position = store.undo_log.position
    refuse("first")
    assert (REFUSED_TRACES_MAX + 1, True) == (len(store.traces), store.undo_log.position - position < 10)
    while store.traces.keys() & {"lapsed-0", f"lapsed-{lapsed - 1}"}:
        forget_lapsed_traces(store)
    assert {*others, "first"} == store.refusals.keys()
    for number in range(lapsed):
        refuse(f"more-{number}")
    assert len(store.refusals) < REFUSED_TRACES_MAX


# Traces, tool calls and values are few, so that moves meet; the last duration lets all traces lapse, and the one before some of them.
MOVE = st.tuples(
    st.sampled_from(["call", "result", "result again", "read", "read", "fact", "propose", "propose", "pass", "pass"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([1, 60_000, TRACE_LAPSE_MS - 60_000, TRACE_LAPSE_MS, TRACE_LAPSE_MS + 1]),
)
Move = tuple[str, int, int, int]


# Readings that contradict each other outlive their trace, and another result uses the event_id.
OUTLIVED: list[Move] = [
    ("result", 0, 0, 1),
    ("result", 0, 0, 1),
    ("read", 0, 1, 1),
    ("read", 0, 1, 60_000),
    ("pass", 0, 0, 1),
    ("pass", 0, 0, TRACE_LAPSE_MS),
    ("result again", 0, 1, 1),
    ("pass", 0, 0, TRACE_LAPSE_MS + 1),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MOVE, min_size=10, max_size=40), st.integers(0, 40))
@example([*OUTLIVED, ("read", 1, 0, 1), ("propose", 0, 1, 1)], 2)
@example([*OUTLIVED, ("call", 1, 0, 1), ("call", 0, 0, 1), ("propose", 0, 0, 1)], 2)
def test_traces_that_are_forgotten_late_change_no_answer(moves: Sequence[Move], events: int) -> None:
    """A bus on which other traces delay the forgetting of lapsed ones, for some events or all, answers as one without delay."""
    score = {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 10 * TRACE_LAPSE_MS, "optional": True}
    status = {"key": "order.status", "type": "string", "max_age_ms": 10 * TRACE_LAPSE_MS}
    rules = [
        {"id": "high", "when": "has(facts.score) && facts.score > 1.0", "effect": "reject", "reason_code": "HIGH"},
        {"id": "fine", "when": "facts.status == 'delivered'", "effect": "approve"},
    ]
    text = document({"status": status, "score": score}, rules, rejection_limit=3)
    prompt, late = Core(text), Core(text)
    for core in (prompt, late):
        core.fact("order.status", "delivered", trace_id="facts")
    for number in range(LAPSED_TRACES_PER_EVENT * events):
        late.state.store.traces[f"other-{number}"] = 0
    late.state.store.trace_lapses.update((0, f"other-{number}") for number in range(LAPSED_TRACES_PER_EVENT * events))
    for move in moves:
        assert fault_of(prompt, move) == fault_of(late, move)
        assert [record.envelope for record in prompt.records] == [record.envelope for record in late.records]
    assert tables(late.state) == tables(restore(late.state))


def fault_of(core: Core, move: Move) -> str:
    """Make a move on a bus, and return the message of its fault, or ""."""
    command = command_of(core, move)
    if command is None:
        core.pass_time(move[3])
        return ""
    answer = core.run(command)
    return answer.message if isinstance(answer, Fault) else ""


def command_of(core: Core, move: Move) -> Command | None:
    """Return the command of a move; None if time passes."""
    kind, first, second, duration_ms = move
    trace_id = f"trace-{first}"
    match kind:
        case "call":
            return publishing(core, call_of(second, trace_id))
        case "result":
            return publishing(core, result_of(second, trace_id))
        case "result again":
            results = core.events_named("ToolReturned")[-3:]
            envelope = result_of(second, trace_id)
            envelope.event_id = results[second % len(results)].event_id if results else ""
            return publishing(core, envelope)
        case "read":
            results = core.events_named("ToolReturned")[-3:]
            evidence = results[second % len(results)] if results else None
            return publishing(core, observation_envelope("order.score", duration_ms % 3, evidence=evidence, trace_id=trace_id))
        case "fact":
            return publishing(core, fact_envelope("order.status", "delivered", trace_id=trace_id))
        case "propose":
            cited = [event for event in core.events if event.HasField("observation") or event.fact.key == "order.status"][-1 - second :]
            return core.proposal(cited, trace_id=trace_id, max_fact_age_ms=10 * TRACE_LAPSE_MS, confidence=0.1 * second)
    return None
