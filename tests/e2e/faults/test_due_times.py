"""Due times that pass while no server runs, and facts that change before execution: on real servers, Redis and processes."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel_client import GavelClient

from tests.e2e.cli.programs import gavel
from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.world import COURIER, Server, approve, open_bus, prove, publish_status, rule_set, run_servers, wait_for_events

Clients = tuple[GavelClient, GavelClient]

TTL_MS = 1_500
LEASE_MS = 1_000
TAKEOVER_MS = 700


async def approve_and_begin(client: GavelClient) -> tuple[Envelope, BeginExecutionResponse]:
    """Return an approval and its start. On a slow machine an approval may expire before; then try another."""
    for number in itertools.count():
        approval = await approve(client, f"parcel/abandoned-{number}")
        start = await client.begin_execution(approval.event_id, producer=COURIER, lease_ms=LEASE_MS)
        if start.HasField("started"):
            return approval, start
    raise AssertionError("not reached")


async def test_timers_due_while_the_server_was_down(tmp_path: Path) -> None:
    """A server that was down when an approval expired and a lease lapsed ends the one and requests a human review for the other.

    Each event is recorded no earlier than it was due, and before any decision of the same time.
    """
    server = Server(tmp_path / "gavel")
    document = rule_set(decision_ttl_ms=TTL_MS, human_takeover_after_ms=TAKEOVER_MS)
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, document)
            abandoned, start = await approve_and_begin(client)
            pending = await approve(client, "parcel/unstarted")
        await asyncio.to_thread(server.kill)
        due_ms = {
            abandoned.event_id: start.started.lease_until.ToMilliseconds() + TAKEOVER_MS,
            pending.event_id: pending.decision.valid_until.ToMilliseconds(),
        }
        await asyncio.sleep(max(TTL_MS, LEASE_MS + TAKEOVER_MS) / 1000)
        await asyncio.to_thread(server.start)
        async with server.client() as client:
            first = await approve(client, "parcel/unstarted")
            ends = await wait_for_events(client, lambda event: event.decision.previous_decision_id in due_ms, count=2)
            assert {("EXECUTION_ABANDONED", abandoned.event_id), ("APPROVAL_EXPIRED", pending.event_id)} == {
                (event.decision.reason_code, event.decision.previous_decision_id) for event in ends
            }
            for event in ends:
                assert event.recorded_at.ToMilliseconds() >= due_ms[event.decision.previous_decision_id]
                assert event.sequence_number < first.sequence_number
            assert "UNDER_REVIEW" == (await client.begin_execution(abandoned.event_id, producer=COURIER)).refusal.reason_code
            assert "EXPIRED" == (await client.begin_execution(pending.event_id, producer=COURIER)).refusal.reason_code
            await prove(client)


@pytest.mark.long
async def test_a_fact_that_changes_before_an_executor_comes(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path, queue_url: str
) -> None:
    """An executor does not carry out an approval whose fact has been superseded, and the log has the reason."""
    first, second = clients
    approval = await approve(first, "parcel/1")
    (pin,) = approval.decision.pinned_facts
    later = (await publish_status(second, ["parcel/1"], "lost"))["parcel/1"]
    with run_executor("succeeds", pair[1], queue_url, bus, "courier", tmp_path / "courier.log"):
        await wait_for_events(first, lambda event: event.fact.decision_id == approval.event_id)
        await wait_until_idle(first)
    (execution,) = (await Ledger.read(redis_url, bus)).of("execution")
    assert (execution_pb2.EXECUTION_STATUS_ABORTED, "FACT_SUPERSEDED", 0, "courier") == (
        execution.execution.status,
        execution.execution.reason_code,
        execution.execution.attempt,
        execution.producer.id,
    )
    assert pin.sequence_number < approval.sequence_number < later.sequence_number < execution.sequence_number
    assert decision_pb2.OUTCOME_APPROVED == approval.decision.outcome
    output = await asyncio.to_thread(gavel, "trace", approval.trace_id, "--bus", bus, server=pair[0], COLUMNS="200")
    assert (0, True) == (output.returncode, "FACT_SUPERSEDED" in output.stdout), output
    await prove(second)
