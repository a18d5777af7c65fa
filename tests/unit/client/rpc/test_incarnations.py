"""The incarnation of a bus: asked once, after the first call that succeeds, and sent with every later call to that bus."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from gavel_client import GavelClient, GavelError, SyncGavelClient
from gavel_client.rpc.backoff import Backoff

from tests.unit.client.fake_server import FakeServer, refusal

INCARNATION = "0190a000-0000-7000-8000-000000000001"


async def test_the_incarnation_is_sent_with_later_calls(client: GavelClient, server: FakeServer) -> None:
    """The first call names no incarnation, all later ones the one that the server told; the server is asked once."""
    server.bus_incarnation = INCARNATION
    for _ in range(3):
        await client.get_projection("order/1")
    assert ([*server.incarnations], server.incarnation_questions) == (["", INCARNATION, INCARNATION], 1)


async def test_each_bus_has_its_own_incarnation(client: GavelClient, server: FakeServer) -> None:
    """A call to another bus does not name the incarnation of the client's bus."""
    server.bus_incarnation = INCARNATION
    await client.get_projection("order/1")
    await client.get_projection("order/1", bus="other")
    assert (["", ""], 2) == ([*server.incarnations], server.incarnation_questions)


async def test_a_failed_call_asks_nothing(client: GavelClient, server: FakeServer) -> None:
    """A call that fails does not ask for the incarnation: its bus may not exist."""
    server.script("GetProjection", refusal(grpc.StatusCode.NOT_FOUND, "BUS_NOT_FOUND"))
    with pytest.raises(GavelError):
        await client.get_projection("order/1")
    assert 0 == server.incarnation_questions


async def test_a_server_that_tells_none_is_asked_once(client: GavelClient, server: FakeServer) -> None:
    """A server of an earlier release tells no incarnation: calls go on without one."""
    for _ in range(2):
        await client.get_projection("order/1")
    assert (["", ""], 1) == ([*server.incarnations], server.incarnation_questions)


async def test_the_synchronous_client(server: FakeServer, backoff: Backoff) -> None:
    """The synchronous client keeps and sends the incarnation, too."""
    server.bus_incarnation = INCARNATION

    def call() -> None:
        with SyncGavelClient(server.target, backoff=backoff) as client:
            client.get_projection("order/1")
            client.get_projection("order/1")

    await asyncio.to_thread(call)
    assert (["", INCARNATION], 1) == ([*server.incarnations], server.incarnation_questions)
