"""The incarnation of a bus: asked once, after the first call that succeeds, and sent with every later call to that bus."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from gavel_client import GavelClient, GavelError, SyncGavelClient
from gavel_client.rpc import client as client_module
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


async def test_a_question_that_is_cancelled_is_asked_again(client: GavelClient, server: FakeServer) -> None:
    """A caller that is cancelled while its client asks for the incarnation leaves the question to the next call."""
    server.bus_incarnation = INCARNATION
    asked, go_on = server.hold_incarnation()
    call = asyncio.create_task(client.get_projection("order/1"))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
    for _ in range(2):
        await client.get_projection("order/1")
    assert ["", "", INCARNATION] == server.incarnations


async def test_the_question_ends_with_the_time_of_the_call(
    client: GavelClient, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not tell the incarnation delays a call at most until its deadline; the next call asks again."""
    server.bus_incarnation = INCARNATION
    monkeypatch.setattr(client_module, "INCARNATION_TIMEOUT_SECONDS", 3_600.0)
    _, go_on = server.hold_incarnation()
    await client.get_projection("order/1", timeout_ms=1_000)
    go_on.set()
    for _ in range(2):
        await client.get_projection("order/1")
    assert ["", "", INCARNATION] == server.incarnations


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAUTHENTICATED])
async def test_a_question_that_fails_is_asked_again(client: GavelClient, server: FakeServer, code: grpc.StatusCode) -> None:
    """A question that a stopping server cancels, or whose credentials expire, is asked again after the next call."""
    server.bus_incarnation = INCARNATION
    server.incarnation_errors.append(refusal(code))
    for _ in range(3):
        await client.get_projection("order/1")
    assert ["", "", INCARNATION] == server.incarnations


async def test_a_question_without_a_token_is_asked_again(server: FakeServer) -> None:
    """A call that has succeeded returns its answer although its client gets no token for the question, which the next call asks."""
    server.bus_incarnation = INCARNATION
    tokens = iter(["token", None, "token", "token", "token"])

    def token() -> str:
        text = next(tokens)
        if text is None:
            raise OSError("the token of 4711 cannot be read")
        return text

    async with GavelClient(server.target, credentials=token) as client:
        for _ in range(3):
            await client.get_projection("order/1")
    assert ["", "", INCARNATION] == server.incarnations
