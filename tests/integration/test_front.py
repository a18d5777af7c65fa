"""The front as a process of its own, between callers and a server that the tests play: what one side sends, the other one gets.

Most tests make a call twice, to the server itself and through the front, and want the same of both. Nothing may be written to
standard error meanwhile, which is where a front's own mistakes would stand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front import keeper as keeper_module
from gavel_server.front import programs as programs_module
from gavel_server.front.keeper import FrontKeeper
from gavel_server.front.link import METHODS
from gavel_server.front.programs import Front
from gavel_server.services.arbitration import Answer
from gavel_server.services.boundary import fitted
from gavel_server.streaming import STREAM_REQUESTS_MAX
from gavel_server.transport import RECEIVE_BYTES_MAX, SEND_BYTES_MAX, bind, channel_options, make_server
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from tests.fronts import FRONTS

Context = grpc.aio.ServicerContext[Any, Any]
HOT = f"/gavel.v1.ArbitrationService/{METHODS[0]}"
PROPOSALS = "/gavel.v1.ArbitrationService/StreamProposals"
UNARY = "/gavel.v1.EventService/GetEvent"
STREAM = "/gavel.v1.EventService/SubscribeEvents"
LARGE_ERROR = fitted(ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, "ä" * 1000, [("field", "x" * 1000)] * 20))
TRAILERS = (("kept", "as it is"), ("kept-bin", b"\x00\xff"))
CALL_SECONDS_MAX = 60.0
# Enough for a call to arrive, on a busy machine too.
LATE_SECONDS = 3.0
# Between a few MiB, which the transport sends and receives, and its limits.
LARGE_BYTES = 5 * 1024 * 1024
UNDER_WAY = 10_000
# A process with the interpreter and gRPC has about 40 MB to start with.
MEMORY_KIB_MAX = 400 * 1024


class Scripted(grpc.GenericRpcHandler):
    """The server: a request's first word says what is to become of the call; `ended` counts calls that `wait` or `flood` and have ended."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[None] = asyncio.Queue()
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.flooded = 0  # messages that `flood` has begun to send

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of UNARY or STREAM; there are no others."""
        handlers: dict[str, Any] = {
            UNARY: grpc.unary_unary_rpc_method_handler(self._once),
            STREAM: grpc.unary_stream_rpc_method_handler(self._behave),
        }
        return handlers.get(handler_call_details.method)

    async def _once(self, request: bytes, context: Context) -> bytes:
        return await anext(aiter(self._behave(request, context)))

    async def _behave(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        word, _, rest = request.partition(b" ")
        match word:
            case b"echo":
                await context.send_initial_metadata(TRAILERS)
                context.set_trailing_metadata(TRAILERS)
                yield rest
            case b"many":
                for number in range(int(rest)):
                    yield b"%d" % number
            case b"grow":
                yield bytes(int(rest))
            case b"fail":
                if rest:
                    yield rest
                await context.abort_with_status(rpc_status.to_status(LARGE_ERROR.status()))
            case b"tell":
                own = ("user-agent", "grpc-accept-encoding")
                yield repr(sorted(pair for pair in map(tuple, context.invocation_metadata() or ()) if pair[0] not in own)).encode()
            case b"remaining":
                yield repr(context.time_remaining()).encode()
            case b"wait" | b"flood":
                self.entered.put_nowait(None)
                try:
                    while word == b"flood":
                        self.flooded += 1
                        yield bytes(64 * 1024)
                    await asyncio.Event().wait()
                finally:
                    self.ended.put_nowait(None)


class World:
    """A front, the server behind it, and a channel to each. Calls of the hot path wait in `asked` until the test answers them."""

    def __init__(self, directory: Path, program: Front) -> None:
        self.directory = directory
        self.program = program
        self.scripted = Scripted()
        self.asked: asyncio.Queue[tuple[str, bytes, Answer]] = asyncio.Queue()
        self.keeper = self.keeper_on("127.0.0.1:0")
        self.address = ""
        self.channels: list[grpc.aio.Channel] = []

    @property
    def inner(self) -> str:
        """The server's own address."""
        return f"unix:{self.directory}/inner.sock"

    def keeper_on(self, listen: str) -> FrontKeeper:
        """Return a keeper of a front of this server, not started."""
        return FrontKeeper(self.program, {name: self._method(name) for name in METHODS}, listen, self.inner)

    def _method(self, name: str) -> Callable[[bytes, Answer], None]:
        return lambda data, answer: self.asked.put_nowait((name, data, answer))

    @property
    def process_id(self) -> int:
        """The front's process."""
        return self.process.pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The same, as the keeper's child."""
        process = self.keeper._process  # nobody else needs it
        assert process is not None
        return process

    async def start(self) -> None:
        """Start the front, let it serve, and connect to both."""
        self.address = await self.keeper.start()
        self.keeper.serve()
        self.channels = [grpc.aio.insecure_channel(target, options=channel_options()) for target in (self.inner, self.address)]

    async def call(self, channel: grpc.aio.Channel, method: str, *requests: bytes, **options: Any) -> list[Any]:
        """Make a call; return its answers, then how it ended: code, details, status, and the metadata that a method sets."""
        options = {"timeout": CALL_SECONDS_MAX, **options}
        if len(requests) == 1:
            one: Any = channel.unary_stream(method)
            call = one(requests[0], **options)
        else:
            many: Any = channel.stream_stream(method)
            call = many(iter(requests), **options)
        answers: list[Any] = []
        status: Status | None = None
        try:
            async for answer in call:
                answers.append(answer)  # noqa: PERF401  # what came before an error counts
        except grpc.aio.AioRpcError as error:
            with suppress(ValueError):
                status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        kept = [
            sorted(pair for pair in map(tuple, metadata) if pair[0].startswith("kept"))  # the order of keys means nothing
            for metadata in (await call.initial_metadata(), await call.trailing_metadata())
        ]
        return [answers, await call.code(), await call.details(), status, *kept]

    async def both(self, method: str, *requests: bytes, **options: Any) -> list[Any]:
        """Make a call to the server and through the front; return what both came to, which must be the same."""
        direct, through = [await self.call(channel, method, *requests, **options) for channel in self.channels]
        assert direct == through
        return through

    async def back(self) -> None:
        """Return once a front that was killed answers again."""
        answers: list[bytes] = []
        async with asyncio.timeout(CALL_SECONDS_MAX):
            while not answers:
                async with grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                    answers, *_ = await self.call(channel, UNARY, b"echo back", wait_for_ready=True)
        assert [b"back"] == answers


@pytest.fixture(params=FRONTS)
async def world(request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[World]:
    """A server without a front yet."""
    server = make_server()
    made = World(tmp_path, request.param)
    server.add_generic_rpc_handlers((made.scripted,))
    bind(server, made.inner)
    await server.start()
    yield made
    for channel in made.channels:
        await channel.close()
    await made.keeper.stop()
    await server.stop(None)
    # gRPC may still speak of a connection to a front that an earlier test has killed.
    assert [] == [line for line in capfd.readouterr().err.splitlines() if "Got goaway" not in line]


@pytest.fixture
async def front(world: World) -> World:
    """A server and its front."""
    await world.start()
    return world


# What passes through


async def test_answers_of_every_length(front: World) -> None:
    """One answer, empty or not, and streams of none and many come through whole, with the metadata that the server sets."""
    for content in (b"", b"one"):
        for method in (UNARY, STREAM):
            assert [[content], grpc.StatusCode.OK, "", None, list(TRAILERS), list(TRAILERS)] == await front.both(method, b"echo " + content)
    for count in (0, 1, 500):
        assert [b"%d" % number for number in range(count)] == (await front.both(STREAM, b"many %d" % count))[0]


@pytest.mark.parametrize(
    "method", ["/test/no", "/gavel.v1.ArbitrationService/No", "/grpc.reflection.v1.ServerReflection/No", "/No", "/a/b/c"]
)
async def test_unknown_methods(front: World, method: str) -> None:
    """A method that does not exist is UNIMPLEMENTED, as the server says it."""
    assert [[], grpc.StatusCode.UNIMPLEMENTED, "Method not found!"] == (await front.both(method, b"x"))[:3]


async def test_known_methods_that_the_server_does_not_have(front: World) -> None:
    """Whatever the server answers at once, it is that answer that arrives, every time."""
    for _ in range(100):
        assert [[], grpc.StatusCode.UNIMPLEMENTED] == (await front.both("/gavel.v1.ToolService/BindTool", b"x"))[:2]


async def test_a_status_with_details(front: World) -> None:
    """An error that nearly fills the trailers arrives with its message and its details, after what came before it."""
    for method, request, before in ((UNARY, b"fail", []), (STREAM, b"fail", []), (STREAM, b"fail first", [b"first"])):
        answers, code, details, status, *_ = await front.both(method, request)
        assert (before, grpc.StatusCode.FAILED_PRECONDITION, LARGE_ERROR.message) == (answers, code, details)
        assert LARGE_ERROR.status() == status


async def test_metadata(front: World) -> None:
    """What a caller sends along reaches the server, text and bytes, repeated keys in order."""
    metadata = (("traceparent", "00-1"), ("many", "1"), ("many", "2"), ("some-bin", b"\x00\xff"))
    for method in (UNARY, STREAM):
        (answer,), *_ = await front.both(method, b"tell", metadata=metadata)
        assert repr(sorted(metadata)) == answer.decode()


async def test_deadlines(front: World) -> None:
    """The server sees a call's deadline, and none where there is none."""
    for channel in front.channels:
        for method in (UNARY, STREAM):
            (told,), *_ = await front.call(channel, method, b"remaining", timeout=1000.0)
            assert 900.0 < float(told) < 1020.0  # on the way it is rounded up
            assert [b"None"] == (await front.call(channel, method, b"remaining", timeout=None))[0]


@pytest.mark.parametrize("method", [UNARY, STREAM])
async def test_a_deadline_that_passes(front: World, method: str) -> None:
    """A call that outlives its deadline ends for the caller, and for the server."""
    for channel in front.channels:
        while front.scripted.entered.empty():  # on a busy machine a call's time may be over before it is there
            answers, code, *_ = await front.call(channel, method, b"wait", timeout=1.0)
            assert not answers
            # Cancelled: where a busy machine let the deadline itself end it, and the caller's clock was a moment behind.
            assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        await front.scripted.entered.get()
        await front.scripted.ended.get()


@pytest.mark.parametrize(("method", "request_"), [(UNARY, b"wait"), (STREAM, b"wait"), (STREAM, b"flood")])
async def test_cancelled_calls_end_at_the_server(front: World, method: str, request_: bytes) -> None:
    """When a caller cancels a call, idle or busy, or its connection goes away, the server's call ends."""
    for channel in front.channels:
        stream: Any = channel.stream_stream(method)
        call = stream(iter([request_]))
        await front.scripted.entered.get()
        call.cancel()
        await front.scripted.ended.get()
    gone = grpc.aio.insecure_channel(front.address)
    stream = gone.stream_stream(method)
    calls = [stream(iter([request_])) for _ in range(20)]
    for _ in calls:
        await front.scripted.entered.get()
    await gone.close()
    for _ in calls:
        await front.scripted.ended.get()


async def test_a_slow_reader_holds_the_server_back(front: World) -> None:
    """What a caller does not read is not gathered in the front's memory: the server has to wait."""
    stream: Any = front.channels[1].unary_stream(STREAM)
    calls = [stream(b"flood") for _ in range(20)]
    for call in calls:
        await call.read()
    sent = -1
    while sent != front.scripted.flooded:  # what the transport itself holds fills up first
        sent = front.scripted.flooded
        await asyncio.sleep(LATE_SECONDS)
        assert memory_kib(front.process_id) < MEMORY_KIB_MAX
    for call in calls:
        call.cancel()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests(front: World, compression: grpc.Compression) -> None:
    """A caller may compress, on the hot path and elsewhere; the server sees what was meant."""
    (answer,), *_ = await front.both(UNARY, b"echo " + b"x" * 100_000, compression=compression)
    assert b"x" * 100_000 == answer
    asking = asyncio.create_task(front.call(front.channels[1], HOT, b"y" * 100_000, compression=compression))
    _, request, reply = await front.asked.get()
    assert b"y" * 100_000 == request
    reply(request)
    assert [b"y" * 100_000] == (await asking)[0]


@pytest.mark.parametrize("size", [LARGE_BYTES, RECEIVE_BYTES_MAX, RECEIVE_BYTES_MAX + 1])
async def test_sizes_of_requests(front: World, size: int) -> None:
    """Requests up to the transport's limit pass, one byte more is refused, on the hot path and elsewhere."""
    request = b"echo ".ljust(size, b"x")
    fits = size <= RECEIVE_BYTES_MAX
    unlimited = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    expected = grpc.StatusCode.OK if fits else grpc.StatusCode.RESOURCE_EXHAUSTED
    for target in (front.inner, front.address):
        async with grpc.aio.insecure_channel(target, options=unlimited) as channel:
            answers, code, *_ = await front.call(channel, UNARY, request)
            assert (expected, [request[5:]] if fits else []) == (code, answers)
    async with grpc.aio.insecure_channel(front.address, options=unlimited) as channel:
        asking = asyncio.create_task(front.call(channel, HOT, request))
        if fits:
            _, got, reply = await front.asked.get()
            assert request == got
            reply(got)
        answers, code, *_ = await asking
        assert (expected, [request] if fits else []) == (code, answers)


async def test_sizes_of_answers(front: World) -> None:
    """Answers up to the transport's limit pass; a larger one is an error of that call alone."""
    (answer,), *_ = await front.call(front.channels[1], UNARY, b"grow %d" % SEND_BYTES_MAX)
    assert SEND_BYTES_MAX == len(answer)
    for channel in front.channels:
        answers, code, *_ = await front.call(channel, UNARY, b"grow %d" % (SEND_BYTES_MAX + 1))
        assert ([], False) == (answers, code == grpc.StatusCode.OK)
    assert [b"still here"] == (await front.both(UNARY, b"echo still here"))[0]


# The hot path


async def test_each_hot_method_is_asked_by_name(front: World) -> None:
    """A call reaches the function of its method, byte for byte, and its answer, empty or not, or its error, reaches the caller."""
    error = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "the log is away: ü", retry_after_ms=1234)
    for result in (b"", b"answer", error):
        for name in METHODS[:-1]:
            calling = front.call(front.channels[1], f"/gavel.v1.ArbitrationService/{name}", b"\x00" + name.encode())
            asking = asyncio.create_task(calling)
            asked, request, reply = await front.asked.get()
            assert (name, b"\x00" + name.encode()) == (asked, request)
            reply(result)
            answers, code, details, status, *_ = await asking
            if isinstance(result, ServiceError):
                assert ([], error.code, error.message, error.status()) == (answers, code, details, status)
                info = ErrorInfo()
                assert status.details[0].Unpack(info)
                assert "LOG_UNAVAILABLE" == info.reason
            else:
                assert ([result], grpc.StatusCode.OK) == (answers, code)


async def test_each_request_of_a_stream_is_asked_by_itself(front: World) -> None:
    """The requests of a stream reach the server one by one; their answers go back as they come, and the stream ends with the last."""
    asking = asyncio.create_task(front.call(front.channels[1], PROPOSALS, b"first", b"second", b""))
    asked = [await front.asked.get() for _ in range(3)]
    assert [("StreamProposals", b"first"), ("StreamProposals", b"second"), ("StreamProposals", b"")] == [one[:2] for one in asked]
    for (_, request, reply), number in reversed(list(zip(asked, range(3), strict=True))):
        reply(b"%d: answer to " % number + request)
    assert ([b"2: answer to ", b"1: answer to second", b"0: answer to first"], grpc.StatusCode.OK) == tuple((await asking)[:2])
    assert [[], grpc.StatusCode.OK] == (await front.call(front.channels[1], PROPOSALS))[:2]


async def test_an_error_ends_a_stream_after_the_answers_under_way(front: World) -> None:
    """What the server refuses altogether ends the stream, once what was asked before has been answered."""
    error = ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "going")
    asking = asyncio.create_task(front.call(front.channels[1], PROPOSALS, b"slow", b"refused"))
    (*_, slow), (*_, refused) = [await front.asked.get() for _ in range(2)]
    refused(error)
    await asyncio.sleep(0.05)
    slow(b"answer")
    assert [[b"answer"], grpc.StatusCode.UNAVAILABLE, "going", error.status()] == (await asking)[:4]


async def test_a_stream_takes_in_so_many_requests(front: World) -> None:
    """Of one stream so many requests are under way; the next is read when an answer has been sent, and other callers are served."""
    call: Any = front.channels[1].stream_stream(PROPOSALS)
    requests = STREAM_REQUESTS_MAX + 20
    stream = call(b"%d" % number for number in range(requests))
    asked = [await front.asked.get() for _ in range(STREAM_REQUESTS_MAX)]
    await asyncio.sleep(0.2)
    assert front.asked.empty()
    answers = 0
    for _ in range(requests):
        _, request, reply = asked.pop(0) if asked else await front.asked.get()
        reply(request)
        answers += len([await stream.read()])
    assert (requests, grpc.aio.EOF) == (answers, await stream.read())


async def test_a_stream_whose_caller_leaves(front: World) -> None:
    """It is forgotten, with whatever was under way in it."""
    call: Any = front.channels[1].stream_stream(PROPOSALS)
    stream = call(iter((b"left", b"left")))
    asked = [await front.asked.get() for _ in range(2)]
    stream.cancel()
    await asyncio.sleep(0.05)
    for *_, reply in asked:
        reply(b"too late")
    assert [b"echo"] == (await front.both(UNARY, b"echo echo"))[0]


async def test_callers_who_leave(front: World) -> None:
    """Callers who cancel, run out of time, or lose their connection in the middle are forgotten; the others' answers are theirs."""
    call: Any = front.channels[1].unary_unary(HOT)
    async with grpc.aio.insecure_channel(front.address) as leaving:
        left: Any = leaving.unary_unary(HOT)
        await asyncio.gather(leaving.channel_ready(), front.channels[1].channel_ready())
        leavers = [asyncio.create_task(_ended(left(b"left", timeout=CALL_SECONDS_MAX))) for _ in range(50)]
        late = [asyncio.create_task(_ended(call(b"late", timeout=LATE_SECONDS))) for _ in range(50)]
        staying = [asyncio.create_task(_ended(call(b"%d" % number, timeout=CALL_SECONDS_MAX))) for number in range(50)]
        cancelled = call(b"cancelled")
        asked = [await front.asked.get() for _ in range(151)]
        cancelled.cancel()
        await asyncio.gather(*late)
    await asyncio.gather(*leavers)
    for _, request, reply in reversed(asked):
        reply(b"answer to " + request)
    assert [b"answer to %d" % number for number in range(50)] == await asyncio.gather(*staying)


async def _ended(call: Awaitable[Any]) -> bytes | grpc.StatusCode | None:
    """Return a call's answer, or how it failed."""
    try:
        return bytes(await call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return None


async def test_ten_thousand_calls_under_way(front: World) -> None:
    """Ten thousand calls that wait at once are all answered, each with its own, and the front's memory stays within bounds."""
    call: Any = front.channels[1].unary_unary(HOT)
    calling = [asyncio.create_task(_ended(call(b"%d" % number))) for number in range(UNDER_WAY)]
    asked = [await front.asked.get() for _ in calling]
    assert memory_kib(front.process_id) < MEMORY_KIB_MAX
    for _, request, reply in reversed(asked):
        reply(request)
    assert [b"%d" % number for number in range(UNDER_WAY)] == await asyncio.gather(*calling)


def memory_kib(process_id: int) -> int:
    """Return how much memory a process has resident."""
    return int(next(line for line in of_process(process_id, "status").splitlines() if line.startswith("VmRSS:")).split()[1])


def of_process(process_id: int, what: str) -> str:
    """Return what the kernel says of a process."""
    return Path(f"/proc/{process_id}/{what}").read_text()


# Its life


async def test_its_command_line_tells_what_it_is(front: World) -> None:
    """`ps` shows what the process is, where callers reach it, and where the server is."""
    arguments = of_process(front.process_id, "cmdline").split("\0")
    assert ("gavel-front" if front.program == "native" else "gavel_server.front.process") in {Path(argument).name for argument in arguments}
    assert ["127.0.0.1:0", front.inner] == arguments[-3:-1]


async def test_a_front_that_is_killed_comes_back_where_it_was(front: World) -> None:
    """A front that dies is started again on its port, as often as it dies; calls under way hear UNAVAILABLE, and later ones work."""
    call: Any = front.channels[1].unary_unary(HOT)
    for _ in range(2):
        process_id = front.process_id
        waiting = asyncio.create_task(_ended(call(b"cut off")))
        *_, reply = await front.asked.get()
        os.kill(process_id, signal.SIGKILL)
        assert grpc.StatusCode.UNAVAILABLE == await waiting
        reply(b"nobody hears it")
        await front.back()
        again = asyncio.create_task(_ended(call(b"again", wait_for_ready=True, timeout=CALL_SECONDS_MAX)))
        _, request, reply = await front.asked.get()
        reply(request)
        assert b"again" == await again
        assert process_id != front.process_id


async def test_a_front_that_hangs_is_replaced(front: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A front that gives no sign of life is killed, another one answers on its address, and the log says why."""
    process = front.process
    monkeypatch.setattr(keeper_module, "PING_SECONDS", 0.2)
    os.kill(process.pid, signal.SIGSTOP)
    await front.back()
    assert -signal.SIGKILL == process.returncode
    assert "front.hangs" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_are_for_the_server(front: World, number: signal.Signals) -> None:
    """A signal to the whole group of processes does not cut off the calls that the server is about to answer."""
    asking = asyncio.create_task(front.call(front.channels[1], HOT, b"x"))
    *_, reply = await front.asked.get()
    os.kill(front.process_id, number)
    await front.both(UNARY, b"echo still here")
    reply(b"answer")
    assert [b"answer"] == (await asking)[0]


async def test_stopping_lets_calls_end(front: World) -> None:
    """A front that is told to stop hands out the answers to the calls under way, and has ended when `stop` returns."""
    asking = asyncio.create_task(front.call(front.channels[1], HOT, b"x"))
    *_, reply = await front.asked.get()
    stopping = asyncio.create_task(front.keeper.stop())
    await asyncio.sleep(0.2)
    reply(b"answer")
    assert [b"answer"] == (await asking)[0]
    await stopping
    assert front.process.returncode is not None


async def test_a_front_that_was_never_let_to_serve(world: World) -> None:
    """Where the server cannot start after all, its front ends by itself, and the port is free again."""
    address = await world.keeper.start()
    process = world.process
    await world.keeper.stop()
    assert 0 == process.returncode
    host, _, port = address.rpartition(":")
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))


async def test_an_address_that_cannot_be_had(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """An address in use, or not of this machine, is the same error as without a front, and leaves no process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for listen in (f"127.0.0.1:{taken.getsockname()[1]}", "192.0.2.1:9090"):
            with pytest.raises(OSError, match="cannot listen") as expected:
                bind(make_server(), listen)
            keeper = world.keeper_on(listen)
            with pytest.raises(OSError, match="cannot listen") as refused:
                await keeper.start()
            assert str(expected.value) == str(refused.value)
            await keeper.stop()
    capfd.readouterr()  # gRPC itself says something about it


async def test_a_port_that_somebody_takes_meanwhile(front: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A front whose port is taken when it is to be started again is started as soon as the port is free."""
    host, _, port = front.address.rpartition(":")
    await front.call(front.channels[1], UNARY, b"echo x")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(front.process_id, signal.SIGKILL)
        while True:
            with suppress(OSError):
                thief.bind((host, int(port)))
                thief.listen()
                break
            await asyncio.sleep(0)
        first = front.process_id
        while front.process_id == first or front.process.poll() is None:  # noqa: ASYNC110  # a child's end sets no event
            await asyncio.sleep(0.05)
    await front.back()
    capfd.readouterr()  # gRPC itself says something about it


async def test_localhost(world: World) -> None:
    """A name that stands for several addresses is listened on at one port, and stays a name."""
    world.keeper = world.keeper_on("localhost:0")
    await world.start()
    name, _, port = world.address.rpartition(":")
    assert "localhost" == name
    for host in {place[4][0] for place in socket.getaddrinfo("localhost", int(port), type=socket.SOCK_STREAM)}:
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in str(host) else socket.AF_INET) as probe:
            probe.bind((str(host), 0))  # this machine has the address
            async with grpc.aio.insecure_channel(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}") as channel:
                assert [b"x"] == (await world.call(channel, UNARY, b"echo x"))[0]


async def test_a_unix_socket_of_somebody_else(world: World) -> None:
    """A unix socket on which somebody listens is refused as without a front, and he keeps it."""
    with pytest.raises(OSError, match="cannot listen") as expected:
        bind(make_server(), world.inner)
    keeper = world.keeper_on(world.inner)
    with pytest.raises(OSError, match="cannot listen") as refused:
        await keeper.start()
    assert str(expected.value) == str(refused.value)
    await keeper.stop()
    async with grpc.aio.insecure_channel(world.inner) as channel:
        assert [b"x"] == (await world.call(channel, UNARY, b"echo x"))[0]


@pytest.mark.parametrize("world", [front for front in FRONTS if front == "native"], indirect=True)
async def test_a_native_front_of_another_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was built for another protocol says so, and ends, whatever else it is given."""
    monkeypatch.setattr(programs_module, "PROTOCOL", 4711)
    for listen in ("127.0.0.1:0", "no address"):
        keeper = world.keeper_on(listen)
        with pytest.raises(OSError, match="another version of gavel; run make front"):
            await keeper.start()
        await keeper.stop()


async def test_a_unix_socket(world: World) -> None:
    """A front listens on a unix socket as well, again after it was killed."""
    world.keeper = world.keeper_on(f"unix:{world.directory}/outer.sock")
    await world.start()
    assert f"unix:{world.directory}/outer.sock" == world.address
    await world.both(UNARY, b"echo x")
    os.kill(world.process_id, signal.SIGKILL)
    await world.back()
