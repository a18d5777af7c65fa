"""Replays of forged logs: a replay of any re-chained log ends with a verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.hash_chain import chain, genesis_hash
from gavel_rules.replay import DivergedError
from gavel_server.log import Record

from tests.support.driver import BUS, Core, document, replay_log
from tests.support.entries import rechain


def _postpone(envelope: Envelope) -> None:
    envelope.decision.evaluated_at.seconds = 2**60


def _fractional(envelope: Envelope) -> None:
    envelope.decision.evaluated_at.nanos = -1


def _infinite(envelope: Envelope) -> None:
    envelope.decision.params.fields["amount"].number_value = float("inf")


def _empty(envelope: Envelope) -> None:
    envelope.decision.params.fields["amount"].Clear()


@pytest.mark.parametrize("forge", [_postpone, _fractional, _infinite, _empty])
def test_value_without_a_json_form_diverges(forge: Callable[[Envelope], None]) -> None:
    """A value without a JSON form is a divergence at its event, reported with the recorded and the expected event."""
    core = Core(document())
    number = core.approve().sequence_number
    events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
    forge(events[number - 1])
    with pytest.raises(DivergedError) as failure:
        replay_log(BUS, rechain(BUS, events))
    divergence = failure.value.divergence
    assert ("field-mismatch", number) == (divergence.kind, divergence.sequence_number)
    assert divergence.differences
    assert all(difference.recorded != difference.expected for difference in divergence.differences)


@pytest.mark.parametrize("field", ["recorded_at", "occurred_at"])
@pytest.mark.parametrize("seconds", [2**62, -(2**62), 2**63 // 1000 + 1, 2**43, 253_402_300_800, -1])
def test_time_out_of_range_is_unlawful(field: str, seconds: int) -> None:
    """An event with a time outside the range of Timestamp is found as an unlawful event."""
    core = Core(document())
    core.fact("order.status", "delivered")
    events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
    getattr(events[-1], field).seconds = seconds
    with pytest.raises(DivergedError) as failure:
        replay_log(BUS, rechain(BUS, events))
    divergence = failure.value.divergence
    assert ("unlawful-event", len(events)) == (divergence.kind, divergence.sequence_number)


@pytest.mark.parametrize("seconds", [2**62, 2**63 // 1000 + 1, 253_402_300_800])
def test_claim_with_a_time_out_of_range_is_refused(seconds: int) -> None:
    """An observation with a time outside the range of Timestamp counts as ahead of the clock."""
    core = Core(document())
    core.observe("order.score", 0.5, evidence=core.tool_result())
    events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
    events[-1].observation.observed_at.seconds = seconds
    with pytest.raises(DivergedError) as failure:
        replay_log(BUS, rechain(BUS, events))
    divergence = failure.value.divergence
    assert ("refused-event", len(events)) == (divergence.kind, divergence.sequence_number)


def _with_bytes(core: Core, number: int, content: bytes) -> list[Record]:
    """Return the log with other bytes as one event, chained anew."""
    records, chain_hash = [], genesis_hash(BUS)
    for record in core.records:
        envelope = content if record.sequence_number == number else record.envelope
        chain_hash = chain(chain_hash, envelope)
        records.append(Record(record.sequence_number, envelope, chain_hash))
    return records


def _refused(core: Core) -> Envelope:
    """Return a decision that approves nothing."""
    decision = core.propose()
    assert decision.decision.outcome != decision_pb2.OUTCOME_APPROVED
    return decision


_APPROVED = Envelope(decision=Decision(outcome=decision_pb2.OUTCOME_APPROVED)).SerializeToString()


@pytest.mark.parametrize("is_decision", [True, False])
def test_bytes_that_say_two_things(is_decision: bool) -> None:
    """Bytes that hold an approval before the decision or proposal that protobuf reads are a divergence, though the messages are equal."""
    core = Core(document())
    decision = _refused(core)
    event = decision if is_decision else core.events[decision.sequence_number - 2]
    content = _APPROVED + event.SerializeToString(deterministic=True)
    assert event == Envelope.FromString(content)
    with pytest.raises(DivergedError, match="in its bytes") as failure:
        replay_log(BUS, _with_bytes(core, event.sequence_number, content))
    divergence = failure.value.divergence
    assert ("duplicate-field", event.sequence_number) == (divergence.kind, divergence.sequence_number)


def test_another_encoding_of_an_event() -> None:
    """Bytes with the fields in another order are proved: protobuf does not promise the same bytes twice."""
    core = Core(document())
    decision = _refused(core)
    rest = Envelope()
    rest.CopyFrom(decision)
    rest.ClearField("decision")
    content = Envelope(decision=decision.decision).SerializeToString() + rest.SerializeToString()
    assert content != core.records[decision.sequence_number - 1].envelope
    replay_log(BUS, _with_bytes(core, decision.sequence_number, content))
