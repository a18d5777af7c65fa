"""Proof by replay: an authentic log is proved, and every kind of change is found at its place (constitution §8)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.replay_service_pb2 import Divergence
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.hash_chain import chain, genesis_hash
from gavel_rules.events.timestamps import timestamp
from gavel_rules.replay import DamagedError, DivergedError, Integrity, Recomputation, VersionNotImplementedError, field_differences
from gavel_server.log import Record

from tests.support.driver import BUS, START_MS, Core, document, event_id, fact_envelope, replay_log
from tests.support.entries import rechain
from tests.support.histories.story import story

Alter = Callable[[list[Envelope]], None]


def copies(core: Core) -> list[Envelope]:
    """Return copies of the log's events, which a test may change."""
    return [Envelope.FromString(record.envelope) for record in core.records]


def first(events: list[Envelope], name: str, after: int = 0) -> int:
    """Return the index of the first event with this name."""
    return next(index for index, event in enumerate(events) if event.event_name == name and index >= after)


def find_divergence(records: list[Record], bus: str = BUS) -> Divergence:
    """Replay a log that must diverge; return the place."""
    with pytest.raises(DivergedError) as failure:
        replay_log(bus, records)
    assert failure.value.divergence.message == str(failure.value)
    return failure.value.divergence


def renumber(events: list[Envelope]) -> list[Envelope]:
    """Number the events by their position, as a forger would."""
    for number, event in enumerate(events, 1):
        event.sequence_number = number
    return events


# An authentic log


def test_story_has_every_category_and_name() -> None:
    """The log that these tests change holds every category, and every name of Gavel's own events in this release."""
    events = story().events
    expected = {
        "BusOpened", "RuleSetDeployed", "RuleSetActivated", "RuleSetDeactivated", "FactRecorded", "FactDerived", "ProposalSubmitted",
        "DecisionApproved", "DecisionRejected", "HumanReviewRequested", "DecisionExpired", "NeedsHumanReview", "FactCollectionRequested",
        "LateExecutionReport", "ObservationRecorded", "ToolCalled", "ToolReturned", "ExecutionStarted", "ExecutionRenewed",
        "ExecutionSucceeded",
        "ExecutionFailed", "ExecutionPartiallySucceeded", "ExecutionAborted", "ShadowDifference", "NoFeasibleProposal",
    }  # fmt: skip
    assert expected == {event.event_name for event in events}


@pytest.mark.parametrize("engine", [decision_pb2.ENGINE_RETE, decision_pb2.ENGINE_REFERENCE])
def test_unchanged_log_is_proved(engine: decision_pb2.Engine.ValueType) -> None:
    """Every decision and every derived fact is recomputed equal, with either engine, and the state is the original one."""
    core = story()
    recomputation = replay_log(BUS, core.records, engine=engine)
    assert len(core.records) == recomputation.events
    assert len([event for event in core.events if event.HasField("decision")]) == recomputation.decisions
    assert len(core.events_named("FactDerived")) == recomputation.derived_facts
    assert core.state.digest() == recomputation.state.digest()


@pytest.mark.long
def test_a_log_may_be_compared_from_anywhere() -> None:
    """A comparison may begin at any number, also within a commit; the rest is proved with the same state."""
    core = story()
    cut_commits = 0
    for number in range(1, len(core.records) + 1):
        recomputation = replay_log(BUS, core.records, compare_from=number)
        assert core.state.digest() == recomputation.state.digest()
        assert recomputation.events <= len(core.records) - number + 1
        cut_commits += recomputation.events < len(core.records) - number + 1
    assert cut_commits > 0


def test_events_before_the_range_are_not_compared() -> None:
    """A changed decision before the compared range is not found."""
    events = copies(story())
    index = first(events, "DecisionRejected")
    events[index].decision.policy_version += 1
    records = rechain(BUS, events)
    assert index + 1 == find_divergence(records).sequence_number
    replay_log(BUS, records, compare_from=index + 2)


@pytest.mark.long
def test_replay_of_a_prefix() -> None:
    """A replay may end at any number without a divergence; but if the log itself ends inside a commit, that is a divergence."""
    core = story()
    cut = {
        event.sequence_number
        for event, following in pairwise(core.events)
        if following.causation_id == event.event_id and following.producer.id == "gavel"
    }
    assert len(core.events_named("ProposalSubmitted")) < len(cut)
    for length in range(1, len(core.records)):
        recomputation = Recomputation(BUS)
        for record in core.records[:length]:
            recomputation.feed(record.sequence_number, record.envelope)
        recomputation.finish(at_head=False)
        if length in cut:
            with pytest.raises(DivergedError) as failure:
                recomputation.finish(at_head=True)
            assert ("missing-event", length + 1) == (failure.value.divergence.kind, failure.value.divergence.sequence_number)
        else:
            recomputation.finish(at_head=True)


# The log as a log


def test_a_changed_byte_breaks_the_chain() -> None:
    """A changed byte breaks the chain, before anything is recomputed."""
    core = story()
    index = first(core.events, "DecisionApproved")
    stored = bytearray(core.records[index].envelope)
    stored[len(stored) // 2] ^= 1
    records = list(core.records)
    records[index] = Record(index + 1, bytes(stored), records[index].chain_hash)
    with pytest.raises(DamagedError) as failure:
        replay_log(BUS, records)
    assert ("chain-broken", index + 1) == (failure.value.divergence.kind, failure.value.divergence.sequence_number)


def test_a_missing_record_is_a_gap() -> None:
    """A missing record is a gap, reported by its number."""
    records = story().records
    with pytest.raises(DamagedError) as failure:
        replay_log(BUS, records[:10] + records[11:])
    assert ("sequence-gap", 11) == (failure.value.divergence.kind, failure.value.divergence.sequence_number)


def test_undecodable_entry_is_damage() -> None:
    """An entry that cannot be decoded is damage, in either pass."""
    with pytest.raises(DamagedError) as failure:
        Integrity(BUS).feed(1, b"\xff", chain(genesis_hash(BUS), b"\xff"))
    assert "undecodable" == failure.value.divergence.kind
    with pytest.raises(DamagedError):
        Recomputation(BUS).feed(1, b"\xff")


def test_log_of_another_bus_is_damage() -> None:
    """The name of the bus is part of its chain."""
    with pytest.raises(DamagedError):
        replay_log("another", story().records)


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
    """An event that no bus records is found in an intact chain before any rule set is compiled."""
    events = copies(story())
    alter(events)
    divergence = find_divergence(rechain(BUS, events))
    assert "unlawful-event" == divergence.kind
    assert (number or first(events, "DecisionApproved") + 1) == divergence.sequence_number


@pytest.mark.parametrize("change", ["opened", "changed"])
def test_unknown_arbiter_version(change: str) -> None:
    """For a log with another arbiter_version the replay gives no verdict on its decisions."""
    events = copies(story())
    if change == "opened":
        events[0].fact.bus_opened.arbiter_version = ARBITER_VERSION + 1
    else:
        events[3].fact.ClearField("value")
        events[3].fact.arbiter_version_changed.arbiter_version = ARBITER_VERSION + 1
    with pytest.raises(VersionNotImplementedError) as failure:
        replay_log(BUS, rechain(BUS, events))
    assert (1 if change == "opened" else 4, ARBITER_VERSION + 1) == (failure.value.sequence_number, failure.value.arbiter_version)


def test_an_event_id_may_come_again_after_the_idempotency_window() -> None:
    """An event_id may be repeated after the idempotency window, and not within it."""
    core = Core()
    window_ms = core.events[0].fact.bus_opened.idempotency_window_ms
    repetition = fact_envelope("k.value", 1)
    repetition.event_id = event_id(77)
    core.publish(Envelope.FromString(repetition.SerializeToString()))
    core.pass_time(window_ms + 2 * 24 * 60 * 60 * 1000)
    core.publish(Envelope.FromString(repetition.SerializeToString()))
    core.prove()
    core.pass_time(window_ms)
    core.publish(repetition)
    assert "unlawful-event" == find_divergence(core.records).kind


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
    """A changed decision in a rechained log is found, with the path, both values and the inputs that it follows from."""
    events = copies(story())
    index = first(events, "DecisionRejected")
    DECISION_CHANGES[path](events[index].decision)
    divergence = find_divergence(rechain(BUS, events))
    assert ("field-mismatch", index + 1, events[index].event_id) == (divergence.kind, divergence.sequence_number, divergence.event_id)
    (difference,) = divergence.differences
    assert path == difference.path
    assert difference.recorded != difference.expected
    assert path in divergence.message
    proposal = events[index - 1]
    cited = [reference.event_id for reference in proposal.proposal.based_on_events]
    assert [proposal.event_id, *cited] == [reference.event_id for reference in divergence.inputs]


def test_differences_are_json() -> None:
    """Differing values are shown as JSON; a field that one side lacks is shown as absent."""
    events = copies(story())
    recorded = events[first(events, "DecisionRejected")]
    expected = Envelope.FromString(recorded.SerializeToString())
    expected.decision.ClearField("policy_id")
    expected.decision.retry_hint.missing_fact_keys.append("k.more")
    expected.decision.terminal = True
    differences = {item.path: (item.recorded, item.expected) for item in field_differences(recorded, expected)}
    assert {
        "decision.policy_id": ('"gavel"', "(absent)"),
        "decision.retry_hint.missing_fact_keys": ('["order.status"]', '["order.status", "k.more"]'),
        "decision.terminal": ("(absent)", "true"),
    } == differences


@pytest.mark.parametrize(
    "name", ["HumanReviewRequested", "DecisionExpired", "NeedsHumanReview", "FactCollectionRequested", "ShadowDifference"]
)
def test_every_event_of_gavel_is_compared(name: str) -> None:
    """Every event of Gavel is recomputed: a changed trace_id diverges in each."""
    events = copies(story())
    index = first(events, name)
    events[index].trace_id = "elsewhere"
    divergence = find_divergence(rechain(BUS, events))
    assert ("field-mismatch", index + 1, ["trace_id"]) == (
        divergence.kind,
        divergence.sequence_number,
        [difference.path for difference in divergence.differences],
    )


def test_a_changed_lease_or_attempt_is_found() -> None:
    """Fields that the server fills into executions are recomputed: another attempt number, id or retry flag diverges."""
    for name, field, value in (
        ("ExecutionStarted", "attempt", 5),
        ("ExecutionStarted", "execution_id", "exec_000000000000"),
        ("ExecutionFailed", "will_retry", False),
        ("ExecutionAborted", "reason_code", "STALE_FACT"),
    ):
        events = copies(story())
        index = first(events, name)
        setattr(events[index].execution, field, value)
        assert index + 1 == find_divergence(rechain(BUS, events)).sequence_number


def test_a_changed_observation_tier_is_found() -> None:
    """A changed tier of an observation diverges."""
    events = copies(story())
    index = first(events, "ObservationRecorded")
    events[index].observation.trust_tier = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
    divergence = find_divergence(rechain(BUS, events))
    assert ["observation.trust_tier"] == [difference.path for difference in divergence.differences]


def test_a_changed_derived_fact_is_found() -> None:
    """A fact that does not follow from its execution is refused when the replay handles it again."""
    events = copies(story())
    index = first(events, "FactDerived")
    events[index].fact.value.string_value = "SUCCESS"
    divergence = find_divergence(rechain(BUS, events))
    assert ("refused-event", index + 1) == (divergence.kind, divergence.sequence_number)
    assert "these fields differ: fact" in divergence.message


def test_changed_input_diverges_at_the_next_decision() -> None:
    """A changed fact is a valid input, but the decisions that rest on it no longer follow."""
    events = copies(story())
    index = first(events, "DecisionApproved")
    pinned = events[index].decision.pinned_facts[-1].sequence_number
    events[pinned - 1].fact.value.string_value = "cancelled"
    divergence = find_divergence(rechain(BUS, events))
    assert index + 1 == divergence.sequence_number
    assert "decision.outcome" in [difference.path for difference in divergence.differences]


def test_changed_rule_set_is_found() -> None:
    """A deployed document with another digest, or one that does not compile, is found at its deployment."""
    events = copies(story())
    index = first(events, "RuleSetDeployed")
    events[index].fact.rule_set_deployed.document = document(rejection_limit=4)
    divergence = find_divergence(rechain(BUS, events))
    assert index + 1 == divergence.sequence_number
    assert "fact.rule_set_deployed.digest" in [difference.path for difference in divergence.differences]
    events[index].fact.rule_set_deployed.document = "gavel: v0"
    assert ("rule-set-invalid", index + 1) == (
        find_divergence(rechain(BUS, events)).kind,
        find_divergence(rechain(BUS, events)).sequence_number,
    )


def test_changed_canonical_form_is_found() -> None:
    """The recorded canonical form of a rule set must be that of its document."""
    core = Core(document())
    other = Core(document(rejection_limit=4))
    events = copies(core)
    events[1].fact.rule_set_deployed.canonical_json = other.events[1].fact.rule_set_deployed.canonical_json
    divergence = find_divergence(rechain(BUS, events))
    assert ["fact.rule_set_deployed.canonical_json"] == [difference.path for difference in divergence.differences]


# Events that are missing, surplus, or in another order


@pytest.mark.parametrize("name", ["DecisionRejected", "DecisionApproved", "HumanReviewRequested", "DecisionExpired", "NeedsHumanReview"])
def test_a_missing_event_is_found(name: str) -> None:
    """A decision or diagnostic that was removed from the log is reported at its place."""
    events = copies(story())
    index = first(events, name)
    records = rechain(BUS, renumber(events[:index] + events[index + 1 :]))
    with pytest.raises(DivergedError) as failure:
        _recompute(records)
    assert index + 1 == failure.value.divergence.sequence_number


def _recompute(records: list[Record]) -> None:
    recomputation = Recomputation(BUS)
    for record in records:
        recomputation.feed(record.sequence_number, record.envelope)


def test_an_invented_event_is_found() -> None:
    """An added decision, expiry or diagnostic diverges at its place."""
    events = copies(story())
    for name in ("DecisionApproved", "DecisionExpired", "NeedsHumanReview"):
        addition = Envelope.FromString(events[first(events, name)].SerializeToString())
        addition.event_id = event_id(999)
        addition.causation_id = ""
        addition.recorded_at.CopyFrom(events[-1].recorded_at)
        events_with_addition = renumber([Envelope.FromString(event.SerializeToString()) for event in [*events, addition]])
        divergence = find_divergence(rechain(BUS, events_with_addition))
        assert len(events_with_addition) == divergence.sequence_number
        assert divergence.kind in ("unexpected-event", "refused-event", "field-mismatch")


def test_late_timer_is_found() -> None:
    """An expiry after an event recorded at or after its due time diverges."""
    core = Core(document())
    core.approve()
    core.pass_time(10_000)
    core.fact("k.value", 1)
    events = copies(core)
    events[-2], events[-1] = events[-1], events[-2]
    divergence = find_divergence(rechain(BUS, renumber(events)))
    assert len(events) - 1 == divergence.sequence_number


def test_an_expiry_before_its_time_is_found() -> None:
    """An expiry a millisecond before its due time diverges."""
    core = Core(document())
    core.approve()
    core.tick(10_000)
    events = copies(core)
    early = timestamp(START_MS + 9_999)
    events[-1].recorded_at.CopyFrom(early)
    events[-1].occurred_at.CopyFrom(early)
    events[-1].decision.evaluated_at.CopyFrom(early)
    divergence = find_divergence(rechain(BUS, events))
    assert (len(events), "unexpected-event") == (divergence.sequence_number, divergence.kind)


def test_swapped_inputs_are_found() -> None:
    """Two proposals on one key that have changed places in the log are found."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.propose([status], trace_id="a")
    core.propose([status], trace_id="b")
    events = copies(core)
    events[-4:] = events[-2:] + events[-4:-2]
    divergence = find_divergence(rechain(BUS, renumber(events)))
    assert len(events) - 2 == divergence.sequence_number


def test_an_input_that_would_be_refused_is_found() -> None:
    """An event that no command could have recorded is found: a claim dated too far ahead, a projection_version ahead of the log."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.propose([status])
    events = copies(core)
    events[-2].proposal.projection_version = 1_000
    assert ("refused-event", len(events) - 1) == (
        find_divergence(rechain(BUS, events)).kind,
        find_divergence(rechain(BUS, events)).sequence_number,
    )
    events = copies(core)
    events[3].occurred_at.CopyFrom(timestamp(START_MS + 5_001))
    assert ("refused-event", 4) == (find_divergence(rechain(BUS, events)).kind, find_divergence(rechain(BUS, events)).sequence_number)
