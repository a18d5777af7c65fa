"""An executor that is killed between STARTED and its report: another finishes the work, once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient

from tests.e2e import executor_process
from tests.e2e.ledger import Ledger
from tests.e2e.world import ACTION, STOP_SECONDS_MAX, Server, approve, prove, seen, until

Clients = tuple[GavelClient, GavelClient]

HANDLERS = Path(__file__).with_name("handlers")
LEASE_MS = 1_500
MIN_IDLE_MS = 300


@contextmanager
def executor(handlers: str, server: Server, redis_url: str, bus: str, name: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an executor with a module of handlers; end it, and expect it to end well unless it has ended before."""
    arguments = [HANDLERS / f"{handlers}.py", server.address, redis_url, bus, name, LEASE_MS, MIN_IDLE_MS]
    with log.open("ab") as errors:
        process = subprocess.Popen([sys.executable, executor_process.__file__, *map(str, arguments)], stderr=errors)
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(STOP_SECONDS_MAX), log.read_text()
    finally:
        process.kill()
        process.wait()


def status_of(event: Envelope) -> str:
    """Return the status of an execution, without its prefix."""
    return execution_pb2.ExecutionStatus.Name(event.execution.status).removeprefix("EXECUTION_STATUS_")


@pytest.mark.parametrize("killed", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "suspended"])
async def test_another_executor_takes_over(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path, killed: signal.Signals
) -> None:
    """The second waits for the lease to lapse and finishes: one final report, one derived fact, the parcel free again."""
    first, second = clients
    with executor("never_returns", pair[0], redis_url, bus, "courier-lost", tmp_path / "lost.log") as lost:
        approval = await approve(first, "parcel/1")
        await seen(first, lambda event: event.execution.decision_id == approval.event_id)
        lost.send_signal(killed)
        with executor("sends", pair[1], redis_url, bus, "courier-found", tmp_path / "found.log"):
            (fact,) = await seen(second, lambda event: event.fact.decision_id == approval.event_id)
            await nothing_is_left(second)
        if killed == signal.SIGSTOP:
            # Whatever it still believes when it wakes, it has lost its lease.
            lost.send_signal(signal.SIGCONT)
        else:
            lost.wait()
    ledger = await Ledger.read(redis_url, bus)
    executions = [event for event in ledger.of("execution") if event.execution.decision_id == approval.event_id]
    started = [event for event in executions if status_of(event) == "STARTED"]
    (final,) = [event for event in executions if event not in started]
    takeover = next(event for event in started if event.producer.id == "courier-found")
    before = [event for event in started if event.sequence_number < takeover.sequence_number]
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
    again = await approve(first, "parcel/1")
    assert decision_pb2.OUTCOME_APPROVED == again.decision.outcome
    await prove(second)


def by(name: str) -> Callable[[Envelope], bool]:
    """Return whether an event is of the executor `name`."""
    return lambda event: event.producer.id == name


async def nothing_is_left(client: GavelClient) -> None:
    """Return once no decision is pending and no entry of a work queue is."""

    async def done() -> bool | None:
        status = await client.get_status()
        waiting = sum(consumer.lag + consumer.pending for consumer in status.consumers)
        pending = (await client.list_pending_decisions()).decisions
        return True if not waiting and not pending else None

    await until(done)


async def test_many_decisions_and_an_executor_killed_again_and_again(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """Executors die at work, one after the other; in the end every decision is carried out once and every fact derived once."""
    first, second = clients
    approvals = [await approve(first, f"parcel/{number}") for number in range(12)]
    for number in range(3):
        with executor("never_returns", pair[number % 2], redis_url, bus, f"courier-{number}", tmp_path / "lost.log") as lost:
            await seen(first, by(f"courier-{number}"))
            lost.kill()
            lost.wait()
    with executor("sends", pair[0], redis_url, bus, "courier-found", tmp_path / "found.log"):
        await seen(second, lambda event: bool(event.fact.derivation_rule_id), count=len(approvals))
        await nothing_is_left(second)
    ledger = await Ledger.read(redis_url, bus)
    finals = [event.execution.decision_id for event in ledger.of("execution") if status_of(event) != "STARTED"]
    derived = [event.fact.decision_id for event in ledger.of("fact") if event.fact.derivation_rule_id]
    expected = sorted(approval.event_id for approval in approvals)
    assert (expected, expected) == (sorted(finals), sorted(derived))
    await prove(first)
