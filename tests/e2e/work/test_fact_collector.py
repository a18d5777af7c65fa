"""Collectors of facts on real servers: they publish what decisions lack, again after failures, timeouts and broken connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.work_service_pb2 import WORK_QUEUE_REQUESTS
from gavel_client import GavelClient, observation_envelope, tool_call_envelope, tool_result_envelope
from gavel_client.consumers.consumer import Disposition
from gavel_client.consumers.fact_collector import Collector, FactCollector

from tests.e2e.world import AGENT, DEPOT, PATIENT_MS, Server, open_bus, poll, proposal, run_servers, wait_for_events
from tests.support.ports import free_port

Clients = tuple[GavelClient, GavelClient]
KEY = "parcel.status"
RETRY_MS = 1_000


@asynccontextmanager
async def running(client: GavelClient, collector: Collector, **settings: Any) -> AsyncIterator[FactCollector]:
    """Run a collector of the depot's facts."""
    runtime = FactCollector(client, {KEY: collector}, producer=DEPOT, retry_ms=RETRY_MS, **settings)
    task = asyncio.create_task(runtime.run())
    try:
        yield runtime
    finally:
        runtime.stop()
        await task


async def ask(client: GavelClient, subject: str) -> None:
    """Propose to send a parcel whose status only a tool has seen: the refusal asks for the fact of a trusted source."""
    trace_id = f"run {subject}"
    call = tool_call_envelope(subject, AGENT, tool_name=DEPOT.id, arguments={}, trace_id=trace_id)
    result = tool_result_envelope(call, result={"status": "ready"})
    observation = observation_envelope(
        subject, AGENT, source_tool=DEPOT.id, evidence=result, extracted_fields={KEY: "ready"}, trace_id=trace_id
    )
    recorded = [(await client.publish_event(event)).envelope for event in (call, result, observation)]
    asking = proposal(recorded[-1])
    asking.trace_id = trace_id
    decision = (await client.submit_proposal(asking)).decision.decision
    assert "INSUFFICIENT_EVIDENCE_TIER" == decision.reason_code


async def collected(client: GavelClient, count: int = 1) -> list[Envelope]:
    """Return the facts of the key once there are so many."""
    return await wait_for_events(client, lambda event: event.fact.key == KEY, count)


async def test_a_fact_is_collected_once(clients: Clients) -> None:
    """A missing fact is published by one of two collectors of a group, in the trace of its request; then the proposal is approved."""
    subjects: list[str] = []

    async def read(subject: str, key: str) -> object:
        subjects.append(subject)
        return "ready"

    async with running(clients[0], read), running(clients[1], read):
        await ask(clients[0], "parcel/1")
        (fact,) = await collected(clients[1])
        (request,) = await wait_for_events(clients[0], lambda event: event.agent_diagnostic.kind == "FactCollectionRequested")
        assert (request.event_id, request.trace_id, "parcel/1") == (fact.causation_id, fact.trace_id, fact.subject)
        assert (DEPOT.id, "ready") == (fact.producer.id, fact.fact.value.string_value)
        again = proposal(fact)
        again.trace_id = request.trace_id
        assert OUTCOME_APPROVED == (await clients[0].submit_proposal(again)).decision.decision.outcome
        await ask(clients[1], "parcel/2")
        await collected(clients[0], 2)
    assert ["parcel/1", "parcel/2"] == subjects


@pytest.mark.parametrize("second", ["ready", "lost"])
async def test_a_request_that_is_delivered_again(clients: Clients, second: str) -> None:
    """A request that is delivered again ends, whether or not the value has changed: the fact keeps value and time of the first delivery."""
    values = iter(["ready", second])

    async def read(_: str, __: str) -> object:
        return next(values)

    collector = FactCollector(clients[0], {KEY: read}, producer=DEPOT)
    await ask(clients[0], "parcel/1")
    (request,) = await wait_for_events(clients[0], lambda event: event.agent_diagnostic.kind == "FactCollectionRequested")
    assert [Disposition.DELETE] * 2 == [await collector._process(request) for _ in range(2)]
    (fact,) = await collected(clients[0])
    assert "ready" == fact.fact.value.string_value


@pytest.mark.long
async def test_a_failing_collector_is_called_again(clients: Clients) -> None:
    """A collector that raises or exceeds its time gets the request again; one that always fails has it parked for an operator."""
    calls: list[str] = []

    async def read(subject: str, key: str) -> object:
        calls.append(subject)
        if subject == "parcel/broken":
            raise RuntimeError("the depot's database is away")
        if len([call for call in calls if call == subject]) == 1:
            await asyncio.Event().wait()  # never answers
        return "ready"

    async with running(clients[0], read, deliveries_max=2, timeout_ms=100) as runtime:
        await ask(clients[0], "parcel/slow")
        (fact,) = await collected(clients[0])
        assert ("parcel/slow", ["parcel/slow"] * 2) == (fact.subject, calls)
        await ask(clients[0], "parcel/broken")

        async def parked() -> bool | None:
            return bool((await clients[1].list_parked(WORK_QUEUE_REQUESTS, "collectors")).items) or None

        await poll(parked)
        assert 3 == runtime.statistics.failed
        await ask(clients[1], "parcel/sound")
        assert "parcel/sound" == (await collected(clients[1], 2))[1].subject
    assert 2 == calls.count("parcel/broken")


@pytest.mark.long
async def test_a_collector_outlasts_a_restart(tmp_path: Path) -> None:
    """A collector whose server restarts goes on by itself, with the requests that came meanwhile, and collects no fact twice."""
    server = Server(tmp_path / "gavel", listen=f"127.0.0.1:{free_port()}")
    calls: list[str] = []

    async def read(subject: str, key: str) -> object:
        calls.append(subject)
        return "ready"

    with run_servers(server):
        async with GavelClient(server.address) as client, GavelClient(server.address) as other:
            await open_bus(other)
            async with running(client, read) as runtime:
                await ask(other, "parcel/1")
                await collected(other)
                server.kill()

                async def noticed() -> bool | None:
                    return bool(runtime.problem) or None

                await poll(noticed)
                await asyncio.to_thread(server.start)
                await other.get_status(timeout_ms=PATIENT_MS)
                await ask(other, "parcel/2")
                assert ["parcel/1", "parcel/2"] == [fact.subject for fact in await collected(other, 2)]
    assert ["parcel/1", "parcel/2"] == calls
