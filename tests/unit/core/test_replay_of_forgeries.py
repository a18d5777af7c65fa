"""Replaying what a forger wrote: whatever a re-chained log holds, the verdict is a verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.replay import DivergedError

from tests.unit.core.driver import BUS, Core, document, rechained, replayed


def _late(envelope: Envelope) -> None:
    envelope.decision.evaluated_at.seconds = 2**60


def _fractional(envelope: Envelope) -> None:
    envelope.decision.evaluated_at.nanos = -1


def _infinite(envelope: Envelope) -> None:
    envelope.decision.params.fields["amount"].number_value = float("inf")


def _empty(envelope: Envelope) -> None:
    envelope.decision.params.fields["amount"].Clear()


@pytest.mark.parametrize("forge", [_late, _fractional, _infinite, _empty])
def test_what_json_cannot_say_still_diverges(forge: Callable[[Envelope], None]) -> None:
    """A value that has no JSON form is reported as a divergence at its event, with what was recorded and expected."""
    core = Core(document())
    number = core.approve().sequence_number
    events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
    forge(events[number - 1])
    with pytest.raises(DivergedError) as caught:
        replayed(BUS, rechained(BUS, events))
    divergence = caught.value.divergence
    assert ("field-mismatch", number) == (divergence.kind, divergence.sequence_number)
    assert divergence.differences
    assert all(difference.recorded != difference.expected for difference in divergence.differences)


@pytest.mark.parametrize("field", ["recorded_at", "occurred_at"])
@pytest.mark.parametrize("seconds", [2**62, -(2**62), 2**63 // 1000 + 1, 2**43, 253_402_300_800, -1])
def test_what_is_no_time_is_unlawful(field: str, seconds: int) -> None:
    """No bus records a time that no Timestamp may name."""
    core = Core(document())
    core.fact("order.status", "delivered")
    events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
    getattr(events[-1], field).seconds = seconds
    with pytest.raises(DivergedError) as caught:
        replayed(BUS, rechained(BUS, events))
    divergence = caught.value.divergence
    assert ("unlawful-event", len(events)) == (divergence.kind, divergence.sequence_number)


@pytest.mark.parametrize("seconds", [2**62, 2**63 // 1000 + 1, 253_402_300_800])
def test_a_claim_of_no_time_would_be_refused(seconds: int) -> None:
    """An observation at a time that no Timestamp may name counts as one that is ahead of the clock."""
    core = Core(document())
    core.observe("order.score", 0.5, evidence=core.tool_result())
    events = [Envelope.FromString(event.SerializeToString()) for event in core.events]
    events[-1].observation.observed_at.seconds = seconds
    with pytest.raises(DivergedError) as caught:
        replayed(BUS, rechained(BUS, events))
    divergence = caught.value.divergence
    assert ("refused-event", len(events)) == (divergence.kind, divergence.sequence_number)
