"""Proof by replay: a true log is proved, and every kind of change to it is found where it is (seeds 002 §8)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.replay_service_pb2 import Divergence
from gavel_rules.chain import chain, genesis_hash
from gavel_rules.events import ARBITER_VERSION, timestamp
from gavel_rules.replay import (
    DamagedError,
    DivergedError,
    Integrity,
    Recomputation,
    VersionNotImplementedError,
    field_differences,
)
from gavel_server.log import Record

from tests.unit.core.driver import BUS, START_MS, Core, document, event_id, fact_envelope, rechained, replayed
from tests.unit.core.story import told

Alter = Callable[[list[Envelope]], None]


def copies(core: Core) -> list[Envelope]:
    """The log's events, free to be changed."""
    return [Envelope.FromString(record.envelope) for record in core.records]


def first(events: list[Envelope], name: str, after: int = 0) -> int:
    """The index of the first event of this name."""
    return next(index for index, event in enumerate(events) if event.event_name == name and index >= after)


def diverged(records: list[Record], bus: str = BUS) -> Divergence:
    """Replay a log that must not be proved; return where."""
    with pytest.raises(DivergedError) as caught:
        replayed(bus, records)
    assert caught.value.divergence.message == str(caught.value)
    return caught.value.divergence


def renumbered(events: list[Envelope]) -> list[Envelope]:
    """Events with numbers as they stand, as a forger would give them."""
    for number, event in enumerate(events, 1):
        event.sequence_number = number
    return events


# A true log


def test_the_story_has_everything() -> None:
    """The log that these tests take apart holds every category and every name of Gavel's own events that this release makes."""
    events = told().events
    expected = {
        "BusOpened", "RuleSetDeployed", "RuleSetActivated", "RuleSetDeactivated", "FactRecorded", "FactDerived", "ProposalSubmitted",
        "DecisionApproved", "DecisionRejected", "HumanReviewRequested", "DecisionExpired", "NeedsHumanReview", "FactCollectionRequested",
        "LateExecutionReport", "ObservationRecorded", "ToolCalled", "ToolReturned", "ExecutionStarted", "ExecutionSucceeded",
        "ExecutionFailed", "ExecutionPartiallySucceeded", "ExecutionAborted", "ShadowDifference", "NoFeasibleProposal",
    }  # fmt: skip
    assert expected == {event.event_name for event in events}


@pytest.mark.parametrize("engine", [decision_pb2.ENGINE_RETE, decision_pb2.ENGINE_REFERENCE])
def test_a_true_log_is_proved(engine: decision_pb2.Engine.ValueType) -> None:
    """Every decision and every derived fact comes out equal, with either engine, and the state is the one that lived."""
    core = told()
    recomputation = replayed(BUS, core.records, engine=engine)
    assert len(core.records) == recomputation.events
    assert len([event for event in core.events if event.HasField("decision")]) == recomputation.decisions
    assert len(core.named("FactDerived")) == recomputation.derived_facts
    assert core.state.digest() == recomputation.state.digest()


def test_a_log_may_be_compared_from_anywhere() -> None:
    """Whatever number the comparison begins at, also amid what one commit made, the rest is proved and the state is the same."""
    core = told()
    made_amid = 0
    for number in range(1, len(core.records) + 1):
        recomputation = replayed(BUS, core.records, compare_from=number)
        assert core.state.digest() == recomputation.state.digest()
        assert recomputation.events <= len(core.records) - number + 1
        made_amid += recomputation.events < len(core.records) - number + 1
    assert made_amid > 0


def test_what_comes_before_is_not_compared() -> None:
    """A decision that was tampered with before the number at which comparison begins is not looked at."""
    events = copies(told())
    index = first(events, "DecisionRejected")
    events[index].decision.policy_version += 1
    records = rechained(BUS, events)
    assert index + 1 == diverged(records).sequence_number
    replayed(BUS, records, compare_from=index + 2)


def test_a_log_may_be_cut_off() -> None:
    """A replay up to any number finds nothing wrong; at the head, what a commit still had to make is missing."""
    core = told()
    cut = {
        event.sequence_number
        for event, following in pairwise(core.events)
        if following.causation_id == event.event_id and following.producer.id == "gavel"
    }
    assert len(core.named("ProposalSubmitted")) < len(cut)
    for length in range(1, len(core.records)):
        recomputation = Recomputation(BUS)
        for record in core.records[:length]:
            recomputation.feed(record.sequence_number, record.envelope)
        recomputation.finish(at_head=False)
        if length in cut:
            with pytest.raises(DivergedError) as caught:
                recomputation.finish(at_head=True)
            assert ("missing-event", length + 1) == (caught.value.divergence.kind, caught.value.divergence.sequence_number)
        else:
            recomputation.finish(at_head=True)


# The log as a log


def test_a_changed_byte_breaks_the_chain() -> None:
    """A byte changed in place is found by the chain, before anything is decided again."""
    core = told()
    index = first(core.events, "DecisionApproved")
    stored = bytearray(core.records[index].envelope)
    stored[len(stored) // 2] ^= 1
    records = list(core.records)
    records[index] = Record(index + 1, bytes(stored), records[index].chain_hash)
    with pytest.raises(DamagedError) as caught:
        replayed(BUS, records)
    assert ("chain-broken", index + 1) == (caught.value.divergence.kind, caught.value.divergence.sequence_number)


def test_a_missing_record_is_a_gap() -> None:
    """A number that is not there is reported by its number."""
    records = told().records
    with pytest.raises(DamagedError) as caught:
        replayed(BUS, records[:10] + records[11:])
    assert ("sequence-gap", 11) == (caught.value.divergence.kind, caught.value.divergence.sequence_number)


def test_bytes_that_are_no_envelope_are_damage() -> None:
    """An entry that cannot be decoded is damage, in either pass."""
    with pytest.raises(DamagedError) as caught:
        Integrity(BUS).feed(1, b"\xff", chain(genesis_hash(BUS), b"\xff"))
    assert "undecodable" == caught.value.divergence.kind
    with pytest.raises(DamagedError):
        Recomputation(BUS).feed(1, b"\xff")


def test_the_log_of_another_bus_does_not_pass() -> None:
    """A bus's name starts its chain."""
    with pytest.raises(DamagedError):
        replayed("another", told().records)


def _set_number(events: list[Envelope]) -> None:
    events[5].sequence_number = 7


def _set_bus(events: list[Envelope]) -> None:
    events[5].bus = "another"


def _swap_category(events: list[Envelope]) -> None:
    events[5].event_category = common_pb2.EVENT_CATEGORY_TOOL_CALL_EVENT


def _drop_payload(events: list[Envelope]) -> None:
    events[5].ClearField("decision")


def _open_twice(events: list[Envelope]) -> None:
    events[5].CopyFrom(events[0])
    events[5].sequence_number = 6
    events[5].event_id = event_id(999)


def _open_late(events: list[Envelope]) -> None:
    events[0].fact.ClearField("bus_opened")
    events[0].fact.key = "k.value"


def _forge_producer(events: list[Envelope]) -> None:
    events[first(events, "DecisionApproved")].producer.type = common_pb2.PRODUCER_TYPE_AGENT


def _turn_back_time(events: list[Envelope]) -> None:
    events[5].recorded_at.CopyFrom(timestamp(START_MS - 1))


def _repeat_id(events: list[Envelope]) -> None:
    events[5].event_id = events[4].event_id


def _invent_cause(events: list[Envelope]) -> None:
    events[5].causation_id = event_id(999)


def _cause_itself(events: list[Envelope]) -> None:
    events[5].causation_id = events[5].event_id


@pytest.mark.parametrize(
    ("alter", "number"),
    [
        (_set_number, 6),
        (_set_bus, 6),
        (_swap_category, 6),
        (_drop_payload, 6),
        (_open_twice, 6),
        (_open_late, 1),
        (_turn_back_time, 6),
        (_repeat_id, 6),
        (_invent_cause, 6),
        (_cause_itself, 6),
        (_forge_producer, None),
    ],
)
def test_an_unlawful_event_is_found(alter: Alter, number: int | None) -> None:
    """A log that is well chained but breaks the laws of the log is found before any rule set is read."""
    events = copies(told())
    alter(events)
    divergence = diverged(rechained(BUS, events))
    assert "unlawful-event" == divergence.kind
    assert (number or first(events, "DecisionApproved") + 1) == divergence.sequence_number


@pytest.mark.parametrize("change", ["opened", "changed"])
def test_semantics_that_this_build_does_not_have(change: str) -> None:
    """A log that needs another arbiter_version is neither proved nor called wrong."""
    events = copies(told())
    if change == "opened":
        events[0].fact.bus_opened.arbiter_version = ARBITER_VERSION + 1
    else:
        events[3].fact.ClearField("value")
        events[3].fact.arbiter_version_changed.arbiter_version = ARBITER_VERSION + 1
    with pytest.raises(VersionNotImplementedError) as caught:
        replayed(BUS, rechained(BUS, events))
    assert (1 if change == "opened" else 4, ARBITER_VERSION + 1) == (caught.value.sequence_number, caught.value.arbiter_version)


def test_an_event_id_may_come_again_after_the_idempotency_window() -> None:
    """Nothing is promised beyond the window: a producer's id that comes again later is lawful, within it it is not."""
    core = Core()
    window_ms = core.events[0].fact.bus_opened.idempotency_window_ms
    again = fact_envelope("k.value", 1)
    again.event_id = event_id(77)
    core.publish(Envelope.FromString(again.SerializeToString()))
    core.pass_time(window_ms + 2 * 24 * 60 * 60 * 1000)
    core.publish(Envelope.FromString(again.SerializeToString()))
    core.prove()
    core.pass_time(window_ms)
    core.publish(again)
    assert "unlawful-event" == diverged(core.records).kind


# Decisions and derived facts


DECISION_CHANGES: dict[str, Callable[[Any], object]] = {
    "decision.reason_code": lambda decision: setattr(decision, "reason_code", "OTHER"),
    "decision.outcome": lambda decision: setattr(decision, "outcome", decision_pb2.OUTCOME_APPROVED),
    "decision.consecutive_rejections": lambda decision: setattr(decision, "consecutive_rejections", 7),
    "decision.policy_version": lambda decision: setattr(decision, "policy_version", 7),
    "decision.evaluated_at": lambda decision: decision.evaluated_at.CopyFrom(timestamp(START_MS + 1)),
    "decision.retry_hint.fact_requirements[0].max_age_ms": lambda decision: setattr(
        decision.retry_hint.fact_requirements[0], "max_age_ms", 1
    ),
    "decision.params.amount": lambda decision: decision.params.update({"amount": 51}),
}


@pytest.mark.parametrize("path", DECISION_CHANGES)
def test_a_changed_decision_diverges_field_by_field(path: str) -> None:
    """A decision that was changed and re-chained is found with the path, both values, and the inputs it follows from."""
    events = copies(told())
    index = first(events, "DecisionRejected")
    DECISION_CHANGES[path](events[index].decision)
    divergence = diverged(rechained(BUS, events))
    assert ("field-mismatch", index + 1, events[index].event_id) == (divergence.kind, divergence.sequence_number, divergence.event_id)
    (difference,) = divergence.differences
    assert path == difference.path
    assert difference.recorded != difference.expected
    assert path in divergence.message
    proposal = events[index - 1]
    cited = [reference.event_id for reference in proposal.proposal.based_on_events]
    assert [proposal.event_id, *cited] == [reference.event_id for reference in divergence.inputs]


def test_differences_are_json() -> None:
    """Values are shown as JSON; a field that one side lacks is absent."""
    events = copies(told())
    recorded = events[first(events, "DecisionRejected")]
    expected = Envelope.FromString(recorded.SerializeToString())
    expected.decision.ClearField("policy_id")
    expected.decision.retry_hint.missing_fact_keys.append("k.more")
    expected.decision.terminal = True
    found = {item.path: (item.recorded, item.expected) for item in field_differences(recorded, expected)}
    assert {
        "decision.policy_id": ('"gavel"', "(absent)"),
        "decision.retry_hint.missing_fact_keys": ('["order.status"]', '["order.status", "k.more"]'),
        "decision.terminal": ("(absent)", "true"),
    } == found


@pytest.mark.parametrize(
    "name", ["HumanReviewRequested", "DecisionExpired", "NeedsHumanReview", "FactCollectionRequested", "ShadowDifference"]
)
def test_everything_that_gavel_makes_is_compared(name: str) -> None:
    """Later decisions and notices are recomputed like first decisions: a changed trace is found in each."""
    events = copies(told())
    index = first(events, name)
    events[index].trace_id = "elsewhere"
    divergence = diverged(rechained(BUS, events))
    assert ("field-mismatch", index + 1, ["trace_id"]) == (
        divergence.kind,
        divergence.sequence_number,
        [difference.path for difference in divergence.differences],
    )


def test_a_changed_lease_or_attempt_is_found() -> None:
    """What the server fills into executions is recomputed: another attempt number, id or retry flag diverges."""
    for name, field, value in (
        ("ExecutionStarted", "attempt", 5),
        ("ExecutionStarted", "execution_id", "exec_000000000000"),
        ("ExecutionFailed", "will_retry", False),
        ("ExecutionAborted", "reason_code", "STALE_FACT"),
    ):
        events = copies(told())
        index = first(events, name)
        setattr(events[index].execution, field, value)
        assert index + 1 == diverged(rechained(BUS, events)).sequence_number


def test_a_changed_observation_tier_is_found() -> None:
    """The tier that an observation got is recomputed from its evidence."""
    events = copies(told())
    index = first(events, "ObservationRecorded")
    events[index].observation.trust_tier = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
    divergence = diverged(rechained(BUS, events))
    assert ["observation.trust_tier"] == [difference.path for difference in divergence.differences]


def test_a_changed_derived_fact_is_found() -> None:
    """A derived fact that is not what its execution derives would be refused today."""
    events = copies(told())
    index = first(events, "FactDerived")
    events[index].fact.value.string_value = "SUCCESS"
    divergence = diverged(rechained(BUS, events))
    assert ("refused-event", index + 1) == (divergence.kind, divergence.sequence_number)
    assert "differing: fact" in divergence.message


def test_a_changed_input_shows_in_the_decision_after_it() -> None:
    """A changed fact is an input like any other; what was decided on it no longer follows."""
    events = copies(told())
    index = first(events, "DecisionApproved")
    pinned = events[index].decision.pinned_facts[-1].sequence_number
    events[pinned - 1].fact.value.string_value = "cancelled"
    divergence = diverged(rechained(BUS, events))
    assert index + 1 == divergence.sequence_number
    assert "decision.outcome" in [difference.path for difference in divergence.differences]


def test_a_rule_set_that_was_swapped_is_found() -> None:
    """A deployed document that is not what its digest says is found where it was deployed; one that does not compile as well."""
    events = copies(told())
    index = first(events, "RuleSetDeployed")
    events[index].fact.rule_set_deployed.document = document(rejection_limit=4)
    divergence = diverged(rechained(BUS, events))
    assert index + 1 == divergence.sequence_number
    assert "fact.rule_set_deployed.digest" in [difference.path for difference in divergence.differences]
    events[index].fact.rule_set_deployed.document = "gavel: v0"
    assert ("rule-set-invalid", index + 1) == (diverged(rechained(BUS, events)).kind, diverged(rechained(BUS, events)).sequence_number)


def test_a_rule_set_whose_canonical_form_was_swapped_is_found() -> None:
    """What decides is the canonical form; it must be the document's."""
    core = Core(document())
    other = Core(document(rejection_limit=4))
    events = copies(core)
    events[1].fact.rule_set_deployed.canonical_json = other.events[1].fact.rule_set_deployed.canonical_json
    divergence = diverged(rechained(BUS, events))
    assert ["fact.rule_set_deployed.canonical_json"] == [difference.path for difference in divergence.differences]


# Events that are missing, too many, or in another order


@pytest.mark.parametrize("name", ["DecisionRejected", "DecisionApproved", "HumanReviewRequested", "DecisionExpired", "NeedsHumanReview"])
def test_a_missing_event_is_found(name: str) -> None:
    """A decision or notice of Gavel's that was taken out of the log is missed at its place."""
    events = copies(told())
    index = first(events, name)
    records = rechained(BUS, renumbered(events[:index] + events[index + 1 :]))
    with pytest.raises(DivergedError) as caught:
        _recompute(records)
    assert index + 1 == caught.value.divergence.sequence_number


def _recompute(records: list[Record]) -> None:
    recomputation = Recomputation(BUS)
    for record in records:
        recomputation.feed(record.sequence_number, record.envelope)


def test_an_invented_event_is_found() -> None:
    """A decision, an expiry or a notice that nothing in the log makes is found at its place."""
    events = copies(told())
    for name in ("DecisionApproved", "DecisionExpired", "NeedsHumanReview"):
        invented = Envelope.FromString(events[first(events, name)].SerializeToString())
        invented.event_id = event_id(999)
        invented.causation_id = ""
        invented.recorded_at.CopyFrom(events[-1].recorded_at)
        extended = renumbered([Envelope.FromString(event.SerializeToString()) for event in [*events, invented]])
        divergence = diverged(rechained(BUS, extended))
        assert len(extended) == divergence.sequence_number
        assert divergence.kind in ("unexpected-event", "refused-event", "field-mismatch")


def test_a_timer_out_of_its_place_is_found() -> None:
    """An expiry stands before any event recorded at or after its due time; later than that is too late."""
    core = Core(document())
    core.approve()
    core.pass_time(10_000)
    core.fact("k.value", 1)
    events = copies(core)
    events[-2], events[-1] = events[-1], events[-2]
    divergence = diverged(rechained(BUS, renumbered(events)))
    assert len(events) - 1 == divergence.sequence_number


def test_an_expiry_before_its_time_is_found() -> None:
    """Nothing makes an approval expire a millisecond early."""
    core = Core(document())
    core.approve()
    core.tick(10_000)
    events = copies(core)
    early = timestamp(START_MS + 9_999)
    events[-1].recorded_at.CopyFrom(early)
    events[-1].occurred_at.CopyFrom(early)
    events[-1].decision.evaluated_at.CopyFrom(early)
    divergence = diverged(rechained(BUS, events))
    assert (len(events), "unexpected-event") == (divergence.sequence_number, divergence.kind)


def test_two_inputs_that_changed_places_are_found() -> None:
    """The order of the log is what was decided on: two proposals on one key cannot change places."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.propose([status], trace_id="a")
    core.propose([status], trace_id="b")
    events = copies(core)
    events[-4:] = events[-2:] + events[-4:-2]
    divergence = diverged(rechained(BUS, renumbered(events)))
    assert len(events) - 2 == divergence.sequence_number


def test_an_input_that_would_be_refused_is_found() -> None:
    """An event that no command could have recorded is found: a claim too far ahead, a projection that was not there."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.propose([status])
    events = copies(core)
    events[-2].proposal.projection_version = 1_000
    assert ("refused-event", len(events) - 1) == (
        diverged(rechained(BUS, events)).kind,
        diverged(rechained(BUS, events)).sequence_number,
    )
    events = copies(core)
    events[3].occurred_at.CopyFrom(timestamp(START_MS + 5_001))
    assert ("refused-event", 4) == (diverged(rechained(BUS, events)).kind, diverged(rechained(BUS, events)).sequence_number)
