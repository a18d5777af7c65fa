"""Fixtures of the client's tests: a stand-in for the server, clients and executors of it, and the queue of decisions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gavel_client.backoff import Backoff
from gavel_client.client import GavelClient
from gavel_client.executor import Executor
from gavel_client.handlers import Handlers
from gavel_client.work_queue import DECISIONS, WorkQueue

from tests.unit.client.executors import ACTION, Behaviour, Make
from tests.unit.client.fake_server import FakeExecutions, FakeServer
from tests.unit.client.redis_helpers import LONG_MS, Member, Queue


@pytest.fixture
def backoff() -> Backoff:
    """Pauses short enough for tests, from a fixed seed."""
    return Backoff(initial_ms=1, maximum_ms=5, random_source=random.Random(1))


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A server that answers as the test says."""
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
    """Makes members of a group on the decisions queue. What they leave comes back only if a test says when."""
    made: list[WorkQueue] = []

    def make(group: str = "g", min_idle_ms: int = LONG_MS, news: asyncio.Event | None = None) -> WorkQueue:
        made.append(WorkQueue(redis_url, queue=DECISIONS, group=group, bus=bus, min_idle_ms=min_idle_ms, backoff=backoff, news=news))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
def make(client: GavelClient, redis_url: str) -> Make:
    """Makes executors of ACTION (or another) with one handler. What they leave comes back to them only if a test says when."""

    def make_one(behaviour: Behaviour, *, action: str = ACTION, timeout_ms: int = 60_000, **options: Any) -> Executor:
        handlers = Handlers()
        handlers.action(action, timeout_ms=timeout_ms)(behaviour)
        return Executor(client, redis_url, handlers, producer_id="refunds", **{"min_idle_ms": LONG_MS, **options})

    return make_one
