"""Fixtures of the client's tests: a fake server, its clients and executors, and the queue of decisions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gavel_client.consumers.work_queue import WorkQueue
from gavel_client.consumers.work_source import DECISIONS
from gavel_client.executor.executor import Executor
from gavel_client.handlers import Handlers
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.client import GavelClient

from tests.unit.client.executor_helpers import ACTION, Behaviour, Make
from tests.unit.client.fake_server import FakeExecutions, FakeServer
from tests.unit.client.work_queues import LONG_MS, Member, Queue


@pytest.fixture
def backoff() -> Backoff:
    """Pauses short enough for tests, from a fixed seed."""
    return Backoff(initial_ms=1, maximum_ms=5, random_source=random.Random(1))


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A server whose responses the test scripts."""
    async with FakeServer() as fake:
        yield fake


@pytest.fixture
def executions(server: FakeServer) -> FakeExecutions:
    """The execution service of `server`."""
    return FakeExecutions(server)


@pytest.fixture
async def client(server: FakeServer, backoff: Backoff, bus: str) -> AsyncIterator[GavelClient]:
    """A client of `server`, on the test's own bus."""
    async with GavelClient(server.target, bus=bus, backoff=backoff) as connected:
        yield connected


@pytest.fixture
async def queue(redis_url: str, bus: str) -> AsyncIterator[Queue]:
    """The decisions queue of the test's bus, as the server and an operator see it."""
    async with Queue.open(redis_url, bus, DECISIONS) as opened:
        yield opened


@pytest.fixture
async def member(redis_url: str, bus: str, backoff: Backoff) -> AsyncIterator[Member]:
    """Creates members of a group on the decisions queue. Pending entries are not claimed unless the test sets `min_idle_ms`."""
    queues: list[WorkQueue] = []

    def make(group: str = "g", min_idle_ms: int = LONG_MS, wakeup: asyncio.Event | None = None) -> WorkQueue:
        queues.append(WorkQueue(redis_url, queue=DECISIONS, group=group, bus=bus, min_idle_ms=min_idle_ms, backoff=backoff, wakeup=wakeup))
        return queues[-1]

    yield make
    for one in queues:
        await one.close()


@pytest.fixture
def make(client: GavelClient, redis_url: str) -> Make:
    """Creates executors with one handler. Pending entries are not claimed unless the test sets `min_idle_ms`."""

    def make_one(behaviour: Behaviour, *, action: str = ACTION, timeout_ms: int = 60_000, **options: Any) -> Executor:
        handlers = Handlers()
        handlers.action(action, timeout_ms=timeout_ms)(behaviour)
        return Executor(client, handlers, redis_url=redis_url, producer_id="refunds", **{"min_idle_ms": LONG_MS, **options})

    return make_one
