"""The collection of evidence: what a failure of a provider becomes."""

from __future__ import annotations

from typing import cast

import grpc
import pytest
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import FactNeed, FactProviders, GavelError
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
