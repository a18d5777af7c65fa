"""The collection of evidence: what a failure of a provider becomes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import grpc
import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import PublishEventResponse
from gavel_client import FactNeed, FactProviders, GavelError, ToolReading
from gavel_client.agents import evidence_collection
from gavel_client.agents.deadline import Deadline
from gavel_client.agents.evidence_collection import EvidenceCollector
from gavel_client.agents.loop_results import LoopStoppedError, Round, StopReason
from gavel_client.agents.threaded_client import LoopClient
from gavel_client.rpc.backoff import Backoff


async def test_server_that_is_away_beyond_the_deadline() -> None:
    """A provider whose server asks for a longer pause than the run has is out of time: it did not fail by an exception."""
    providers = FactProviders()

    @providers.facts("order.status")
    async def order(need: FactNeed) -> list[Envelope]:
        raise GavelError(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", "away", retry_after_ms=3_600_000)

    needs, _ = providers.assign([FactRequirement(key="order.status", subject="order/1")], "trace", "decision")
    current = Round(Envelope())
    collector = EvidenceCollector(cast("LoopClient", None), Deadline(60_000, Backoff()), current, Envelope())
    with pytest.raises(LoopStoppedError) as stop:
        await collector.collect(needs)
    assert StopReason.PROVIDER_FAILED == stop.value.reason
    assert [("E_TIMEOUT", "the server was unavailable until the deadline: UNAVAILABLE LOG_UNAVAILABLE")] == [
        (failure.code, failure.message) for failure in current.failures
    ]


async def test_plain_provider_that_raises_stop_iteration() -> None:
    """A plain provider that raises StopIteration, which no future can hold, fails at once and with its place."""
    providers = FactProviders()

    @providers.facts("order.status")
    def order(_: FactNeed) -> list[Envelope]:
        events: list[list[Envelope]] = []
        return next(iter(events))

    needs, _ = providers.assign([FactRequirement(key="order.status", subject="order/1")], "trace", "decision")
    current = Round(Envelope())
    collector = EvidenceCollector(cast("LoopClient", None), Deadline(600_000, Backoff()), current, Envelope())
    with pytest.raises(LoopStoppedError):
        await collector.collect(needs)
    (failure,) = current.failures
    assert "PROVIDER_EXCEPTION" == failure.code
    assert failure.message.startswith("RuntimeError at test_evidence_collection.py:")


async def test_a_reading_counts_from_the_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading counts from the recording of its TOOL_CALL, plus the time after which the try began that read it."""
    providers = FactProviders()
    present = SimpleNamespace(seconds=1_000.0)
    monkeypatch.setattr(evidence_collection, "time", SimpleNamespace(monotonic=lambda: present.seconds))

    @providers.tool("order.status", tool_name="orders")
    async def order(_: FactNeed) -> ToolReading:
        present.seconds += 40  # the first try ends then, and the second one takes as long
        if present.seconds < 1_080:
            raise GavelError(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", "away")
        return ToolReading({}, {"order.status": "open"})

    async def publish(envelope: Envelope, *, timeout_ms: int) -> PublishEventResponse:
        recorded = Envelope()
        recorded.CopyFrom(envelope)
        recorded.recorded_at.FromSeconds(int(present.seconds))
        return PublishEventResponse(envelope=recorded)

    needs, _ = providers.assign([FactRequirement(key="order.status", subject="order/1", max_age_ms=60_000)], "trace", "decision")
    proposal = Envelope(producer=Producer(type=PRODUCER_TYPE_AGENT, id="agent"))
    client = AsyncMock(publish_event=publish)
    collector = EvidenceCollector(client, Deadline(600_000, Backoff(initial_ms=1)), Round(Envelope()), proposal)
    (event,) = await collector.collect(needs)
    assert 1_040 == event.observation.observed_at.ToSeconds()
