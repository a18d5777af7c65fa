"""Collectors of facts: when a fact occurred, and clocks that differ from the bus's. tests/e2e/work has the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import grpc
import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_DATABASE_SNAPSHOT, Producer
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, FactCollection
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError
from gavel_client.consumers.consumer import Disposition
from gavel_client.consumers.fact_collector import FactCollector

from tests.unit.client.fake_server import FakeServer, refusal

ORDERS = Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db")
REQUEST = Envelope(
    event_id="0190a000-0000-8000-8000-000000000001",
    subject="order/1",
    agent_diagnostic=AgentDiagnostic(fact_collection=FactCollection(fact_requirements=[FactRequirement(key="order.status")])),
)
AHEAD = refusal(
    grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", violations=[("envelope.occurred_at", "is 6000 ms ahead of the bus's clock")]
)


class Orders:
    """The source of facts. It notes when it is called."""

    def __init__(self) -> None:
        self.calls: list[datetime] = []

    async def read(self, _: str, __: str) -> object:
        """Return a status."""
        self.calls.append(datetime.now(UTC))
        return "delivered"


@pytest.fixture
def orders() -> Orders:
    """A source of facts."""
    return Orders()


@pytest.fixture
def collector(client: GavelClient, orders: Orders) -> FactCollector:
    """A collector of its facts."""
    return FactCollector(client, {"order.status": orders.read}, producer=ORDERS)


def published(server: FakeServer) -> list[Envelope]:
    """Return the facts that were sent."""
    return [request.envelope for request in server.requests["PublishEvent"]]


async def test_a_fact_occurs_when_its_collector_is_called(server: FakeServer, collector: FactCollector, orders: Orders) -> None:
    """A fact is dated before the call of its collector, and keeps that time while the server is away."""
    server.script("PublishEvent", *[refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE") for _ in range(3)])
    before = datetime.now(UTC)
    assert Disposition.DELETE is await collector._process(REQUEST)
    first, *others = published(server)
    assert before <= first.occurred_at.ToDatetime(UTC) <= orders.calls[0]
    assert [first] * 3 == others


async def test_a_clock_that_is_behind(server: FakeServer, collector: FactCollector) -> None:
    """A fact is never dated before its request, whatever this clock says."""
    request = Envelope()
    request.CopyFrom(REQUEST)
    request.recorded_at.FromDatetime(datetime.now(UTC) + timedelta(hours=1))
    await collector._process(request)
    assert [request.recorded_at] == [fact.occurred_at for fact in published(server)]


async def test_a_clock_that_is_ahead(server: FakeServer, collector: FactCollector) -> None:
    """A fact whose time the server refuses is sent again without one, as the same event."""
    server.script("PublishEvent", AHEAD)
    assert Disposition.DELETE is await collector._process(REQUEST)
    first, second = published(server)
    assert (True, False) == (first.HasField("occurred_at"), second.HasField("occurred_at"))
    assert first.event_id == second.event_id


async def test_a_fact_without_a_time_is_not_retried(server: FakeServer, collector: FactCollector, orders: Orders) -> None:
    """If the server is away when a fact is sent without its time, which it would then date too late, the value is collected anew."""
    server.script("PublishEvent", AHEAD, refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE"))
    with pytest.raises(GavelError, match="UNAVAILABLE"):
        await collector._process(REQUEST)
    assert 2 == len(published(server))
    assert Disposition.DELETE is await collector._process(REQUEST)
    assert 2 == len(orders.calls)
