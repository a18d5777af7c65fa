"""A consumer that speaks the contract alone, for tests of streams of work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from gavel.v1.work_service_pb2 import (
    WORK_QUEUE_DECISIONS,
    AcknowledgeWork,
    ConsumeRequest,
    ConsumeResponse,
    ConsumerHeartbeat,
    OpenConsumer,
    ParkWork,
    RejectWork,
    WorkItem,
    WorkQueue,
)
from gavel_client import GavelClient

from tests.e2e.world import WAIT_SECONDS_MAX


class Consumer:
    """One open stream. `name` is the consumer's name in its group."""

    def __init__(self, responses: AsyncIterator[ConsumeResponse], requests: asyncio.Queue[ConsumeRequest | None]) -> None:
        self.name = ""
        self._responses = responses
        self._requests = requests

    async def next(self) -> WorkItem:
        """Return the next item."""
        response = await self.next_response()
        assert response.WhichOneof("item") == "work", response
        return response.work

    async def next_not_held(self) -> str:
        """Return the item of the next settlement without effect."""
        response = await self.next_response()
        assert response.WhichOneof("item") == "not_held", response
        return response.not_held.item_id

    async def next_response(self) -> ConsumeResponse:
        """Return the next response."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            return await anext(self._responses)

    async def take(self, count: int) -> list[WorkItem]:
        """Return the next items."""
        return [await self.next() for _ in range(count)]

    async def has_next(self, seconds: float) -> bool:
        """Return whether an item or the end of the stream comes within a time. After False, the stream can no longer be read."""
        try:
            async with asyncio.timeout(seconds):
                await anext(self._responses)
        except TimeoutError:
            return False
        return True

    def send(self, request: ConsumeRequest | None) -> None:
        """Send a request; None ends the requests."""
        self._requests.put_nowait(request)

    def acknowledge(self, *items: WorkItem) -> None:
        """Acknowledge items."""
        for item in items:
            self.send(ConsumeRequest(acknowledge=AcknowledgeWork(item_id=item.item_id)))

    def reject(self, item: WorkItem, delay_ms: int = 0, reason: str = "") -> None:
        """Return an item to the group."""
        self.send(ConsumeRequest(reject=RejectWork(item_id=item.item_id, delay_ms=delay_ms, reason=reason)))

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        self.send(ConsumeRequest(heartbeat=ConsumerHeartbeat()))

    def park(self, item: WorkItem, reason: str = "") -> None:
        """Park an item."""
        self.send(ConsumeRequest(park=ParkWork(item_id=item.item_id, reason=reason)))


@asynccontextmanager
async def consume(
    client: GavelClient,
    group: str = "executors",
    queue: WorkQueue.ValueType = WORK_QUEUE_DECISIONS,
    **settings: object,
) -> AsyncIterator[Consumer]:
    """Open a stream on the client's bus; on exit, cancel it."""
    requests: asyncio.Queue[ConsumeRequest | None] = asyncio.Queue()
    opening = OpenConsumer(bus=client.bus, queue=queue, group=group, **settings)  # type: ignore[arg-type]  # fields by name
    requests.put_nowait(ConsumeRequest(open=opening))

    async def sent() -> AsyncIterator[ConsumeRequest]:
        while (request := await requests.get()) is not None:
            yield request

    try:
        async with aclosing(client.consume(sent())) as responses:
            consumer = Consumer(responses, requests)
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                opened = await anext(responses)
            assert opened.WhichOneof("item") == "opened", opened
            consumer.name = opened.opened.consumer
            yield consumer
    finally:
        requests.put_nowait(None)  # gRPC waits for the next request of a stream also after the server has ended it
