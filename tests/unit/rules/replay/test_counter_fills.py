"""The third pass of a replay: the recorded past of counters against the events before them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gavel.v1.fact_pb2 import CounterFilled
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.replay import DivergedError, FillProof

from tests.support.counted_plays import COUNTERS, WITH, WITHOUT, Step, play
from tests.support.driver import Core

# The last amount is beyond what counters hold.
STEPS: list[Step] = [("propose", customer, amount) for amount in (7.25, 30.0, 51.0, 2.0**53) for customer in ("ann", "bob")]


def proof_of(change: Callable[[CounterFilled], None], field: str = "entries", *, arbiter_version: int = ARBITER_VERSION) -> FillProof:
    """Return the proof of a log whose counters were filled, once its events are fed. The first fill that has `field` is changed before."""
    core = Core(WITHOUT, arbiter_version=arbiter_version)
    for number, step in enumerate(STEPS):
        play(core, step, number)
    core.activate(WITH[0])
    fills = core.prove().fills
    change(next(event.fact.counter_filled for event in fills[0].events if getattr(event.fact.counter_filled, field)))
    proof = FillProof(core.bus, fills)
    for record in core.records[: proof.last]:
        proof.feed(record.sequence_number, record.envelope)
    return proof


def test_a_true_fill_is_proved() -> None:
    """The recorded fills of a log are those of its events, and are compared in steps: for each counter at least its fill and its past."""
    steps = list(proof_of(lambda filled: None).compare())
    assert 2 * len(COUNTERS) <= len(steps)


def add_entry(filled: CounterFilled) -> None:
    """Add an entry that no event has."""
    filled.entries.add(entry_id="unknown", group="ann", amount=1, sequence_number=1)


def change_amount(filled: CounterFilled) -> None:
    """Change the amount or the text of an entry."""
    entry = filled.entries[0]
    if entry.WhichOneof("value") == "text":
        entry.text += "x"
    else:
        entry.amount += 1


def remove_entry(filled: CounterFilled) -> None:
    """Leave out the entry of an event."""
    del filled.entries[0]


def fail_a_group(filled: CounterFilled) -> None:
    """State that a group misses an event."""
    filled.faults.add(group="ann").until.FromSeconds(2_000_000_000)


def fail_all_groups(filled: CounterFilled) -> None:
    """State that all groups miss an event."""
    filled.full_until.FromSeconds(2_000_000_000)


def fail_by_another_event(filled: CounterFilled) -> None:
    """Name another event that a group misses."""
    filled.faults[0].sequence_number += 1


def repeat_entry(filled: CounterFilled) -> None:
    """Bring an entry twice."""
    filled.entries.add().CopyFrom(filled.entries[0])


@pytest.mark.parametrize("change", [add_entry, change_amount, remove_entry, repeat_entry, fail_a_group, fail_all_groups])
def test_a_false_fill_is_found(change: Callable[[CounterFilled], None]) -> None:
    """An entry too many, one too few, one with another amount, one that comes twice, and groups that miss no event are divergences."""
    with pytest.raises(DivergedError) as raised:
        list(proof_of(change).compare())
    assert "counter-mismatch" == raised.value.divergence.kind


def test_a_fault_by_another_event_is_found() -> None:
    """A fill that names another event that a group misses is a divergence; from version 3 on, groups miss events in entries."""
    with pytest.raises(DivergedError) as raised:
        list(proof_of(fail_by_another_event, "faults", arbiter_version=2).compare())
    assert "counter-mismatch" == raised.value.divergence.kind
