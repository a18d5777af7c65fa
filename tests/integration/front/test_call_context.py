"""The contract of the call's context: every method gets the same one on both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from gavel.v1 import execution_service_pb2
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, BeginExecutionResponse
from gavel.v1.replay_service_pb2 import VerifyReplayRequest, VerifyReplayResponse
from gavel_server.fairness.waiting import announce_wait
from gavel_server.front.frames import METHODS
from gavel_server.front.programs import FrontSetting, native_program
from gavel_server.front.supervisor import FrontSupervisor
from gavel_server.rpc.call_context import WAITS_KEY, CallContext, Metadata
from gavel_server.rpc.callback_methods import Respond
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import ARBITRATION, EXECUTION, REPLAY
from gavel_server.rpc.transport import bind, make_server

from tests.support.fronts import FRONTS, TRANSPORTS

EMPTY: Final = execution_service_pb2.BeginExecutionRequest().SerializeToString()
# A method of each shape, on the hot path and elsewhere.
HOT: Final = "gavel.v1.ArbitrationService/SubmitProposal"
HOT_STREAM: Final = "gavel.v1.ArbitrationService/StreamProposals"
UNARY: Final = "gavel.v1.ExecutionService/BeginExecution"
STREAM: Final = "gavel.v1.ReplayService/VerifyReplay"
ALL: Final = (HOT, HOT_STREAM, UNARY, STREAM)


class Probe:
    """Methods that record the context of each call while the call is in progress."""

    def __init__(self) -> None:
        self.contexts: list[tuple[str, str, str, Metadata, int | None]] = []
        self.waits = False

    def note(self, context: CallContext) -> None:
        """Read a context."""
        self.contexts.append((context.method, context.transport, context.peer, context.metadata, context.remaining_ms()))

    def plain(self, data: bytes, context: CallContext, respond: Respond) -> None:
        """Answer a call of the hot path."""
        self.note(context)
        respond(b"")

    async def BeginExecution(  # noqa: N802  # the contract's name
        self, request: BeginExecutionRequest, context: CallContext
    ) -> BeginExecutionResponse:
        """Answer a unary call."""
        self.note(context)
        if self.waits:
            await announce_wait()
            await announce_wait()
        return BeginExecutionResponse()

    async def VerifyReplay(  # noqa: N802  # the contract's name
        self, request: VerifyReplayRequest, context: CallContext
    ) -> AsyncIterator[VerifyReplayResponse]:
        """Answer a call with a stream."""
        self.note(context)
        yield VerifyReplayResponse()

    RenewExecution = ReportExecution = BeginExecution


class World:
    """A server on a transport whose methods are probes."""

    def __init__(self, transport: FrontSetting, directory: Path) -> None:
        self.transport = transport
        self.probe = Probe()
        self.inner = f"unix:{directory}/inner.sock"
        self.address = ""
        self._server = make_server()
        self._front: FrontSupervisor | None = None

    async def start(self, listen: str) -> None:
        """Serve callers on an address."""
        interceptor = Interceptor(behind_front=self.transport == "native")
        methods = interceptor.intercept(ARBITRATION, dict.fromkeys(METHODS, self.probe.plain))
        interceptor.register_methods(self._server, ARBITRATION, methods)
        for service in (EXECUTION, REPLAY):
            interceptor.register(self._server, service, self.probe)
        if self.transport == "native":
            bind(self._server, self.inner)
            self._front = FrontSupervisor(native_program(), methods, listen, self.inner)
            self.address = await self._front.start()
            self._front.serve()
        else:
            self.address = bind(self._server, listen)
        await self._server.start()

    async def stop(self) -> None:
        """Stop the server."""
        if self._front is not None:
            await self._front.stop()
        await self._server.stop(None)

    async def call(self, method: str, address: str = "", **options: Any) -> tuple[str, str, str, Metadata, int | None]:
        """Make a call; return its context as the method read it."""
        async with grpc.aio.insecure_channel(address or self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            one: Any = channel.unary_stream(f"/{method}")
            many: Any = channel.stream_stream(f"/{method}")
            async for _ in many(iter([EMPTY]), **options) if method == HOT_STREAM else one(EMPTY, **options):
                pass
        (context,) = self.probe.contexts
        self.probe.contexts.clear()
        return context


@pytest.fixture(params=TRANSPORTS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose server has not started."""
    server = World(request.param, tmp_path)
    yield server
    await server.stop()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
async def test_name_transport_and_address(world: World, listen: str) -> None:
    """A method gets its own name, the caller's transport, and the caller's address as HOST:PORT or [IPV6]:PORT."""
    await world.start(listen)
    hosts = ("[::1]",) if listen.startswith("[") else ("127.0.0.1", "[::1]") if listen.startswith("localhost") else ("127.0.0.1",)
    for method in ALL:
        name, transport, peer, _, _ = await world.call(method)
        assert (method, "native" if world.transport == "native" else "grpc.aio") == (name, transport)
        host, _, port = peer.rpartition(":")
        assert host in hosts
        assert 0 < int(port) < 65536
        assert peer != world.address


async def test_a_caller_on_a_unix_socket(world: World, tmp_path: Path) -> None:
    """A caller on a unix socket has no address of its own."""
    await world.start(f"unix:{tmp_path}/outer.sock")
    assert ["unix:"] * len(ALL) == [(await world.call(method))[2] for method in ALL]


async def test_metadata(world: World) -> None:
    """A method gets the caller's own metadata, text and bytes, sorted by key, repeated keys in their order.

    The keys of gRPC, credentials and the keys of Gavel are left out, except the one that callers may set.
    """
    await world.start("127.0.0.1:0")
    metadata = (
        ("traceparent", "00-1-2-01"),
        ("many", "2"),
        ("authorization", "Bearer x.y.z"),
        ("many", "1"),
        ("some-bin", b"\x00\xff"),
        ("empty", ""),
        ("gavel-handle", "1"),
        ("gavel-secret", "guess"),
        ("gavel-other-bin", b"x"),
        ("gavel-bus-incarnation", "x"),
    )
    expected = (metadata[5], metadata[9], metadata[1], metadata[3], metadata[4], metadata[0])
    for method in ALL:
        assert expected == (await world.call(method, metadata=metadata, timeout=60.0))[3]
        assert () == (await world.call(method))[3]


async def test_callers_cannot_forge_their_address(world: World) -> None:
    """Metadata under the front's own key changes nothing and does not reach the method."""
    await world.start("127.0.0.1:0")
    for method in ALL:
        _, _, peer, metadata, _ = await world.call(method, metadata=(("gavel-peer", "10.9.8.7:6"), ("own", "x")))
        assert peer.startswith("127.0.0.1:")
        assert (("own", "x"),) == metadata


async def test_deadlines(world: World) -> None:
    """A method gets the time until its caller's deadline; None without a deadline."""
    await world.start("127.0.0.1:0")
    for method in ALL:
        remaining_ms = (await world.call(method, timeout=1000.0))[4]
        assert remaining_ms is not None
        assert 900_000 < remaining_ms <= 1_020_000  # gRPC rounds it up on the way
        assert (await world.call(method))[4] is None


@pytest.mark.parametrize("world", FRONTS, indirect=True)
async def test_client_on_the_private_socket(world: World) -> None:
    """A client on the server's private socket has a unix socket's address and the transport grpc.aio."""
    await world.start("127.0.0.1:0")
    assert ("grpc.aio", "unix:") == (await world.call(UNARY, world.inner))[1:3]


async def test_a_wait_is_between_server_and_front(world: World) -> None:
    """The server tells the front that a call waits; the caller gets no headers of it."""
    await world.start("127.0.0.1:0")
    world.probe.waits = True
    for address in (world.address, world.inner if world.transport == "native" else world.address):
        async with grpc.aio.insecure_channel(address) as channel:
            unary: Any = channel.unary_unary(f"/{UNARY}")
            call = unary(EMPTY)
            assert b"" == await call
            is_inner = address == world.inner
            assert is_inner == (WAITS_KEY in {key for key, _ in await call.initial_metadata()})


@pytest.mark.parametrize("world", FRONTS, indirect=True)
async def test_too_much_metadata(world: World) -> None:
    """Metadata beyond the limit is an error of the call on either path through the front; it is never cut."""
    await world.start("127.0.0.1:0")
    for method in (HOT, UNARY, STREAM):  # of a stream of requests grpc.aio's client makes INTERNAL now and then
        for metadata in ((("large", "x" * 20_000),), (("large-bin", b"x" * 20_000),)):
            with pytest.raises(grpc.aio.AioRpcError) as error_info:
                await world.call(method, metadata=metadata)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED == error_info.value.code()
