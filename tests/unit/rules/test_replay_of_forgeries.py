"""Replays of forged logs: a replay of any re-chained log ends with a verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.replay import DivergedError

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
