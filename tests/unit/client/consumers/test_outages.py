"""A consumer through every outage of a real Redis: it goes on by itself afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.consumers import work_queue
from gavel_client.consumers.consumer import Consumer, Disposition
from gavel_client.consumers.work_queue import WorkQueue
from gavel_client.consumers.work_source import DECISIONS
from gavel_client.rpc.backoff import Backoff
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.support.redis.outages import OUTAGES, Outage
from tests.support.redis.tcp_proxy import running_proxy
from tests.unit.client.work_queues import Queue, until


@pytest.mark.long
@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES.keys())
async def test_consumer_survives(outage: Outage, tmp_path: Path, bus: str, backoff: Backoff, monkeypatch: pytest.MonkeyPatch) -> None:
    """During an outage the consumer names it; afterwards it takes the next entry, without a restart."""
    monkeypatch.setattr(work_queue, "COMMAND_TIMEOUT_SECONDS", 1.0)
    done: list[int] = []

    async def process(envelope: Envelope) -> Disposition:
        done.append(envelope.sequence_number)
        return Disposition.DELETE

    async with EmbeddedRedis(tmp_path) as server, running_proxy(server.url) as proxy:
        consumer = Consumer(WorkQueue(proxy.url, queue=DECISIONS, group="g", bus=bus, backoff=backoff), process, concurrency=1)
        running = asyncio.create_task(consumer.run())
        async with Queue.open(server.url, bus, DECISIONS) as queue:
            await queue.add(Envelope(sequence_number=1))
        await until(lambda: done == [1])
        async with outage(server, proxy):
            await until(lambda: bool(consumer.problem))
        async with Queue.open(server.url, bus, DECISIONS) as queue:
            await queue.add(Envelope(sequence_number=2))
        await until(lambda: done == [1, 2])
        await until(lambda: not consumer.problem)
        consumer.stop()
        await running
