"""An executor that is killed between STARTED and its report: another one finishes its work, once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient

from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.world import ACTION, STOP_SECONDS_MAX, Server, approve, prove, wait_for_events

Clients = tuple[GavelClient, GavelClient]


def status_of(event: Envelope) -> str:
    """Return the status of an execution, without its prefix."""
    return execution_pb2.ExecutionStatus.Name(event.execution.status).removeprefix("EXECUTION_STATUS_")


@pytest.mark.long
@pytest.mark.parametrize("killed", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "suspended"])
async def test_another_executor_takes_over(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path, killed: signal.Signals, queue_url: str
) -> None:
    """When the lease has lapsed a second executor finishes: one last report, one derived fact, and the key is free."""
    first, second = clients
    with run_executor("never_returns", pair[0], queue_url, bus, "courier-lost", tmp_path / "lost.log") as victim:
        approval = await approve(first, "parcel/1")
        await wait_for_events(first, lambda event: event.execution.decision_id == approval.event_id)
        victim.send_signal(killed)
        with run_executor("succeeds", pair[1], queue_url, bus, "courier-found", tmp_path / "found.log"):
            (fact,) = await wait_for_events(second, lambda event: event.fact.decision_id == approval.event_id)
            await wait_until_idle(second)
        if killed == signal.SIGSTOP:
            # When it resumes, its lease has lapsed.
            victim.send_signal(signal.SIGCONT)
        else:
            victim.wait(STOP_SECONDS_MAX)
    ledger = await Ledger.read(redis_url, bus)
    executions = [event for event in ledger.of("execution") if event.execution.decision_id == approval.event_id]
    starts = [event for event in executions if status_of(event) == "STARTED"]
    (final,) = [event for event in executions if event not in starts]
    takeover = next(event for event in starts if event.producer.id == "courier-found")
    before = [event for event in starts if event.sequence_number < takeover.sequence_number]
    assert {"courier-lost"} == {event.producer.id for event in before}
    assert before[-1].execution.lease_until.ToNanoseconds() <= takeover.recorded_at.ToNanoseconds()
    assert ("SUCCESS", "courier-found", takeover.execution.execution_id) == (
        status_of(final),
        final.producer.id,
        final.execution.execution_id,
    )
    assert [fact] == [event for event in ledger.of("fact") if event.fact.decision_id]
    assert (f"execution.{ACTION}.status", "SUCCESS", final.execution.execution_id) == (
        fact.fact.key,
        fact.fact.value.string_value,
        fact.fact.execution_id,
    )
    successor = await approve(first, "parcel/1")
    assert decision_pb2.OUTCOME_APPROVED == successor.decision.outcome
    await prove(second)


def by(name: str) -> Callable[[Envelope], bool]:
    """Whether an event is of the executor `name`."""
    return lambda event: event.producer.id == name


@pytest.mark.long
async def test_executors_that_are_killed_repeatedly(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path, queue_url: str
) -> None:
    """Although executors are killed again and again, every decision is carried out once and every fact derived once."""
    first, second = clients
    approvals = [await approve(first, f"parcel/{number}") for number in range(12)]
    for number in range(3):
        with run_executor("never_returns", pair[number % 2], queue_url, bus, f"courier-{number}", tmp_path / "lost.log") as victim:
            await wait_for_events(first, by(f"courier-{number}"))
            victim.kill()
            victim.wait(STOP_SECONDS_MAX)
    with run_executor("succeeds", pair[0], queue_url, bus, "courier-found", tmp_path / "found.log"):
        await wait_for_events(second, lambda event: bool(event.fact.derivation_rule_id), count=len(approvals))
        await wait_until_idle(second)
    ledger = await Ledger.read(redis_url, bus)
    reports = [event.execution.decision_id for event in ledger.of("execution") if status_of(event) != "STARTED"]
    facts = [event.fact.decision_id for event in ledger.of("fact") if event.fact.derivation_rule_id]
    expected = sorted(approval.event_id for approval in approvals)
    assert (expected, expected) == (sorted(reports), sorted(facts))
    await prove(first)
