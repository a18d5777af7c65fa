"""Callers over grpc.aio that send no request, take no answers, or exceed the limits of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1.event_service_pb2 import SubscribeEventsRequest, SubscribeEventsResponse
from gavel_client import GavelError
from gavel_server.rpc import messages, transport
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.callback_methods import Respond
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.limits import CONNECTION_CALLS_MAX, HEADER_BYTES_MAX
from gavel_server.rpc.service_descriptors import ARBITRATION, EVENT, HEALTH
from gavel_server.rpc.transport import bind, make_server
from grpc_health.v1 import health

from tests.e2e.world import poll
from tests.support.http2 import RST_STREAM, SETTINGS, Http2Connection

REFUSED_STREAM = bytes((0, 0, 0, 7))
ANSWER_BYTES = 100_000
GET, SUBSCRIBE, SUBMIT = (
    "/gavel.v1.EventService/GetEvent",
    "/gavel.v1.EventService/SubscribeEvents",
    "/gavel.v1.ArbitrationService/SubmitProposal",
)


class Events:
    """An event service whose subscriptions send without end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def SubscribeEvents(  # noqa: N802  # the contract's name
        self, request: SubscribeEventsRequest, context: CallContext
    ) -> AsyncGenerator[SubscribeEventsResponse, None]:
        """Send large events."""
        try:
            while True:
                yield SubscribeEventsResponse(envelope={"bus": "x" * ANSWER_BYTES})  # type: ignore[arg-type]  # a dict will do
        finally:
            self.ended.set()

    def __getattr__(self, name: str) -> Any:
        async def answer(request: Any, context: CallContext) -> Any:
            raise AssertionError("no request should arrive")

        return answer


@pytest.fixture
async def events() -> Events:
    """The servicer."""
    return Events()


@pytest.fixture
async def address(events: Events) -> AsyncIterator[str]:
    """The address of a server with these services."""

    def answer(data: bytes, context: CallContext, respond: Respond) -> None:
        respond(data)

    server = make_server()
    served = Interceptor()
    served.register(server, EVENT, events)
    methods = {method.name: answer for method in ARBITRATION.methods}
    served.register_methods(server, ARBITRATION, served.intercept(ARBITRATION, methods))
    served.register_library(server, HEALTH, health.aio.HealthServicer())
    address = bind(server, "127.0.0.1:0")
    await server.start()
    yield address
    await server.stop(None)


async def _end_of(call: Any) -> GavelError:
    """Return the error that a call ends with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return GavelError.from_rpc_error(error)
    raise AssertionError("the call ended without an error")


@pytest.mark.parametrize("method", [GET, SUBSCRIBE, SUBMIT, "/grpc.health.v1.Health/Check"])
async def test_calls_without_a_request(address: str, method: str) -> None:
    """A call that ends without a message is INVALID_ARGUMENT, whatever its shape."""
    async with grpc.aio.insecure_channel(address) as channel:
        rpc: Any = channel.stream_stream(method)
        error = await _end_of(rpc(iter([]), timeout=30))
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (error.code, error.reason)
    assert ["request"] == [violation.field for violation in error.violations]


@pytest.mark.parametrize("method", [GET, SUBSCRIBE, SUBMIT])
async def test_requests_that_do_not_arrive(address: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose request does not arrive in time is ended."""
    monkeypatch.setattr(messages, "REQUEST_SECONDS_MAX", 0.1)

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with grpc.aio.insecure_channel(address) as channel:
        rpc: Any = channel.stream_stream(method)
        error = await _end_of(rpc(nothing(), timeout=30))
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL") == (error.code, error.reason)
    assert "the request did not arrive within 0.1 s; try again" == error.message


async def test_callers_that_take_no_answers(address: str, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose caller stops reading is ended at the server, and the caller hears why once it reads on."""
    monkeypatch.setattr(messages, "STALL_SECONDS_MAX", 0.2)
    async with grpc.aio.insecure_channel(address) as channel:
        rpc: Any = channel.unary_stream(SUBSCRIBE)
        call = rpc(b"", timeout=60)
        assert await call.read()
        await asyncio.wait_for(events.ended.wait(), 30)
        error = await _end_of(call)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL") == (error.code, error.reason)
    assert "were not read" in error.message


async def test_streams_of_a_connection(address: str) -> None:
    """A connection has so many calls under way, and further ones are refused before they begin."""
    host, _, port = address.rpartition(":")
    connection = await Http2Connection.open(host, int(port))

    async def settings_acknowledged() -> bool | None:
        return any(kind == SETTINGS for kind, *_ in connection.frames) or None

    await poll(settings_acknowledged)
    for _ in range(CONNECTION_CALLS_MAX + 10):
        connection.start_call(GET.encode())

    async def refused_streams() -> list[int] | None:
        refused = [stream for kind, _, stream, payload in connection.frames if kind == RST_STREAM and payload == REFUSED_STREAM]
        return refused if len(refused) == 10 else None

    streams = await poll(refused_streams)
    await connection.close()
    assert list(range(2 * CONNECTION_CALLS_MAX + 1, 2 * CONNECTION_CALLS_MAX + 21, 2)) == streams


async def test_metadata(address: str) -> None:
    """Metadata over the limit is refused, and smaller metadata passes."""
    async with grpc.aio.insecure_channel(address) as channel:
        rpc: Any = channel.unary_unary(SUBMIT)
        assert b"x" == await rpc(b"x", metadata=(("large", "x" * (HEADER_BYTES_MAX - 1_000)),))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rpc(b"x", metadata=(("large", "x" * HEADER_BYTES_MAX),))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED == refused.value.code()


async def test_idle_connections(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without calls is closed after a time."""
    monkeypatch.setattr(transport, "IDLE_SECONDS_MAX", 1)
    server = make_server()
    address = bind(server, "127.0.0.1:0")
    await server.start()
    host, _, port = address.rpartition(":")
    connection = await Http2Connection.open(host, int(port))
    await asyncio.wait_for(connection.wait_closed(), 60)
    await connection.close()
    await server.stop(None)
