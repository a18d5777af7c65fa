"""The limits of the native front against callers that keep none: what they cost, and that others do not notice."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc
import pytest
from gavel_server.errors import invalid
from gavel_server.rpc import limits

from tests.integration.front.world import CALL_SECONDS_MAX, HOT, PROPOSALS, STREAM, UNARY, World, memory_kib
from tests.support.fronts import FRONTS
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Connection,
    call_headers,
    frame,
    message,
)

pytestmark = pytest.mark.parametrize("world", FRONTS, indirect=True)

MIB: Final = 1024 * 1024
MEMORY_KIB: Final = 300 * 1024
# What an attack may leave.
GROWTH_KIB: Final = 50 * 1024
GZIP: Final = (b"grpc-encoding", b"gzip")
ENHANCE_YOUR_CALM: Final = 11
PADDED: Final = 0x8
# Where tests wait for a time limit, they shorten it.
SHORT_SECONDS: Final = 2


@asynccontextmanager
async def connections(world: World, count: int, *, window_bytes: int = 65_535) -> AsyncIterator[list[Http2Connection]]:
    """Open connections; close them at the end."""
    host, _, port = world.address.rpartition(":")
    opened = [await Http2Connection.open(host, int(port), window_bytes=window_bytes) for _ in range(count)]
    yield opened
    for connection in opened:
        await connection.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(CALL_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  # it sets no event
            await asyncio.sleep(0.05)


async def call(world: World, method: str = UNARY, request: bytes = b"echo still here") -> list[Any]:
    """Make a call on a connection of its own; return its answers and code."""
    async with grpc.aio.insecure_channel(world.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        return (await world.call(channel, method, request))[:2]


async def watch(world: World, attack: Awaitable[None]) -> None:
    """Run an attack; the front's memory must stay within bounds meanwhile, other callers must be served, and memory must return."""
    assert [[b"still here"], grpc.StatusCode.OK] == await call(world)
    before = memory_kib(world.process_id)
    attacking = asyncio.ensure_future(attack)
    while not attacking.done():
        assert memory_kib(world.process_id) < MEMORY_KIB
        assert [[b"still here"], grpc.StatusCode.OK] == await call(world)
        await asyncio.sleep(0.05)
    await attacking
    await until(lambda: memory_kib(world.process_id) < before + GROWTH_KIB)


def ended(connection: Http2Connection) -> set[int]:
    """Return the streams that the server has ended."""
    return {stream for kind, flags, stream, _ in connection.frames if kind == RST_STREAM or (kind == HEADERS and flags & 1)}


@pytest.mark.parametrize(
    "path", [b"/\xff\xfe/\x80", b"", b"x", b"/a b/c", b"/a\xc3\xa4/b", b"/" + b"a" * 10_000, b"//", b"/gavel.v1/GetEvent/"]
)
async def test_odd_paths_do_not_reach_the_server(front: World, path: bytes) -> None:
    """A call of a method that does not exist ends at the front, whatever its name is made of."""
    async with connections(front, 1) as (connection,):
        stream = connection.start_call(path)
        connection.send_data(stream, message(b"x"))
        await until(lambda: stream in ended(connection))
    assert set() == front.scripted.seen
    assert [[b"still here"], grpc.StatusCode.OK] == await call(front)


@pytest.mark.parametrize("method", [HOT, UNARY, STREAM])
async def test_calls_without_a_message(front: World, method: str) -> None:
    """A call that takes one message and ends without it is INVALID_ARGUMENT, and the server does not see it."""
    answers, code, details, status, *_ = await front.call(front.channels[1], method)
    expected = invalid([("request", "is missing: the call ended without a message")])
    assert ([], grpc.StatusCode.INVALID_ARGUMENT, expected.message, expected.status()) == (answers, code, details, status)
    assert set() == front.scripted.seen
    assert front.requests.empty()


@pytest.mark.long
@pytest.mark.parametrize("method", [HOT, UNARY, STREAM])
async def test_calls_whose_message_does_not_come(world: World, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose message does not come in time is RESOURCE_EXHAUSTED; a stream of requests may wait for its next one."""
    monkeypatch.setattr(limits, "REQUEST_SECONDS_MAX", SHORT_SECONDS)
    await world.start()
    many: Any = world.channels[1].stream_stream(PROPOSALS)
    proposals = many()
    await proposals.write(b"first")
    (*_, reply) = await world.requests.get()
    reply(b"answer")
    assert b"answer" == await proposals.read()
    opened: Any = world.channels[1].stream_stream(method)
    waiting = opened()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED == await waiting.code()
    assert f"the request did not arrive within {SHORT_SECONDS} s; try again" == await waiting.details()
    assert not proposals.done()
    proposals.cancel()


@pytest.mark.long
@pytest.mark.parametrize(("flags", "payload"), [(0, b""), (PADDED, b"\0")], ids=["nothing", "padding"])
async def test_calls_that_get_frames_without_data(world: World, flags: int, payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames without data do not keep a call open whose message does not come."""
    monkeypatch.setattr(limits, "REQUEST_SECONDS_MAX", SHORT_SECONDS)
    await world.start()
    async with connections(world, 1) as (connection,):
        stream = connection.start_call(HOT.encode())

        def send_on() -> bool:
            connection.send(frame(DATA, flags, stream, payload))
            return stream in ended(connection)

        await until(send_on)


@pytest.mark.long
async def test_unfinished_messages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that never end are limited in bytes from their first byte on, and in time."""
    monkeypatch.setattr(limits, "REQUEST_SECONDS_MAX", SHORT_SECONDS)
    await world.start()

    async def attack() -> None:
        async with connections(world, 10) as opened:
            calls: dict[Http2Connection, set[int]] = {connection: set() for connection in opened}
            for connection, streams in calls.items():
                for _ in range(200):
                    stream = connection.start_call(HOT.encode())
                    connection.send_data(stream, message(b"x" * 200_000, length=MIB), end=False)
                    streams.add(stream)
                await connection.drain()
            await until(lambda: all(streams <= ended(connection) for connection, streams in calls.items()))

    await watch(world, attack())


@pytest.mark.parametrize("method", [HOT, UNARY, STREAM])
async def test_compressed_bombs(front: World, method: str) -> None:
    """Messages that unpack to far more than their method's limit cost no more memory than the limit."""
    bomb = gzip.compress(bytes(16 * MIB))

    async def attack() -> None:
        async with connections(front, 2) as opened:
            for connection in opened:
                for _ in range(100):
                    connection.send_data(connection.start_call(method.encode(), GZIP), message(bomb, compressed=True))
                await connection.drain()
            await until(lambda: all(100 == len(ended(connection)) for connection in opened))

    await watch(front, attack())
    assert front.requests.empty()


@pytest.mark.long
@pytest.mark.parametrize(("method", "request_"), [(UNARY, b"grow 400000"), (STREAM, b"grow 400000"), (STREAM, b"flood")])
async def test_answers_that_are_not_read(world: World, method: str, request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that callers do not read are limited in bytes and in time, and their calls end at the server too."""
    monkeypatch.setattr(limits, "STALL_SECONDS_MAX", SHORT_SECONDS)
    await world.start()

    async def attack() -> None:
        async with connections(world, 4, window_bytes=0) as opened:
            for connection in opened:
                for _ in range(100):
                    connection.send_data(connection.start_call(method.encode()), message(request_))
                await connection.drain()
            await until(lambda: all(100 == len(ended(connection)) for connection in opened))

    await watch(world, attack())
    for _ in range(world.scripted.entered.qsize()):
        await world.scripted.ended.get()


@pytest.mark.long
@pytest.mark.parametrize(("method", "request_"), [(UNARY, b"grow 400000"), (STREAM, b"grow 400000"), (STREAM, b"flood")])
async def test_answers_that_are_read_byte_by_byte(world: World, method: str, request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that reads a few bytes of its answers now and then is ended like one that reads nothing, at the server too."""
    monkeypatch.setattr(limits, "STALL_SECONDS_MAX", SHORT_SECONDS)
    await world.start()
    async with connections(world, 4, window_bytes=1) as opened:
        streams = [connection.start_call(method.encode()) for connection in opened]
        for connection, stream in zip(opened, streams, strict=True):
            connection.send_data(stream, message(request_))

        def read_on() -> bool:
            for connection, stream in zip(opened, streams, strict=True):
                connection.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 2)))
            return all(stream in ended(connection) for connection, stream in zip(opened, streams, strict=True))

        await until(read_on)
    for _ in range(world.scripted.entered.qsize()):
        await world.scripted.ended.get()


@pytest.mark.long
async def test_a_stream_that_is_not_read_ends_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that its caller does not read ends, at the server too; one that is read and an idle one of the same connection stay."""
    monkeypatch.setattr(limits, "STALL_SECONDS_MAX", 2 * SHORT_SECONDS)  # gRPC's clients say only now and then that they have read on
    await world.start()
    stream: Any = world.channels[1].unary_stream(STREAM)
    stalled, idle, active = (stream(request) for request in (b"flood", b"wait", b"flood"))
    await stalled.read()
    while world.scripted.ended.empty():
        assert await active.read()
    await until(lambda: 2 == world.scripted.entered.qsize() - world.scripted.ended.qsize())
    assert not active.done()
    assert not idle.done()
    assert await stalled.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
    assert await active.read()
    for one in (active, idle):
        one.cancel()


async def test_idle_connections_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that connect and say nothing do not keep others out; the connections of calls under way stay."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 20)
    monkeypatch.setattr(limits, "CALLER_CONNECTIONS_MAX", 10)
    await world.start()
    stream: Any = world.channels[1].unary_stream(STREAM)
    staying = stream(b"wait")
    await world.scripted.entered.get()
    async with connections(world, 100) as opened:
        assert [[b"still here"], grpc.StatusCode.OK] == await call(world)
        # Ten of the caller: one with a call under way, one for the call before, which made another one leave.
        await until(lambda: 92 == sum(connection.is_closed for connection in opened))
        assert not any(connection.is_closed for connection in opened[92:])
    assert not staying.done()
    staying.cancel()


@pytest.mark.long
@pytest.mark.parametrize("start", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a preface", "a preface"])
async def test_connections_that_never_begin(world: World, start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose first HTTP/2 frames do not come in time is closed."""
    monkeypatch.setattr(limits, "REQUEST_SECONDS_MAX", SHORT_SECONDS)
    await world.start()
    host, _, port = world.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(start)
    async with asyncio.timeout(CALL_SECONDS_MAX):
        while await reader.read(1000):
            pass
    writer.close()


async def test_callers_with_busy_connections_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams on every connection do not keep others out: the address with most of them loses some."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 10)
    monkeypatch.setattr(limits, "CALLER_CONNECTIONS_MAX", 8)
    await world.start()
    host, _, port = world.address.rpartition(":")
    streams: list[asyncio.StreamWriter] = []
    for number in range(12):
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(f"127.0.0.{2 + number % 2}", 0))
        writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, call_headers(PROPOSALS.encode())))
        writer.write(frame(PING, 0, 0, b"pingping"))  # answered once the call is under way
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the connections beyond the limit
            await reader.readuntil(b"pingping")
        streams.append(writer)
    assert [[b"still here"], grpc.StatusCode.OK] == await call(world)
    for writer in streams:
        writer.close()


async def test_rapid_resets(front: World) -> None:
    """A caller that resets its calls at once, again and again, is told to calm down; the server hears that the caller has gone."""
    async with connections(front, 1) as (connection,):
        for _ in range(limits.RESETS_MAX + 1):
            stream = connection.start_call(HOT.encode())
            connection.send_data(stream, message(b"x"))
            connection.reset(stream)
        await asyncio.wait_for(connection.wait_closed(), CALL_SECONDS_MAX)
        (last,) = [payload for kind, _, _, payload in connection.frames if kind == GOAWAY]
        assert ENHANCE_YOUR_CALM == struct.unpack(">II", last[:8])[1]
    assert [[b"still here"], grpc.StatusCode.OK] == await call(front)
    await until(lambda: all(context.cancellation.is_cancelled for context in front.contexts))


@asynccontextmanager
async def deaf_caller(world: World) -> AsyncIterator[asyncio.StreamWriter]:
    """Connect as a caller that reads nothing."""
    host, _, port = world.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(PREFACE + frame(SETTINGS, 0, 0))
    try:
        yield writer
    finally:
        writer.close()
        del reader


async def test_headers_that_become_no_call(front: World) -> None:
    """A caller that reads no answers to headers that become no call does not fill the front's memory with them."""
    start = b"\x83\x86\x84"  # POST, http and the path /
    content_type = b"\x5f\x7f\xa1\x1e" + b"\xff" * 4000  # HPACK keeps it, and a byte refers to it from then on
    assert [[b"still here"], grpc.StatusCode.OK] == await call(front)
    before = memory_kib(front.process_id)
    async with deaf_caller(front) as writer:
        for stream in range(1, 20_000, 2):
            writer.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, start + (content_type if stream == 1 else b"\xbe")))
        for _ in range(50):
            assert [[b"still here"], grpc.StatusCode.OK] == await call(front)
            assert memory_kib(front.process_id) < before + GROWTH_KIB


async def test_malformed_headers_do_not_end_other_calls(front: World) -> None:
    """A caller gets an answer to each call with malformed headers, and its other calls go on."""
    async with connections(front, 1) as (connection,):
        proposals = connection.start_call(PROPOSALS.encode())
        for _ in range(200):
            malformed = connection.start_call(HOT.encode(), (b"grpc-timeout", b"x"))
            connection.send_data(malformed, message(b"x"))
        connection.send_data(proposals, message(b"first"))
        (_, data, answer) = await front.requests.get()
        answer(b"")
        assert b"first" == data
        await until(lambda: proposals in ended(connection))
        assert 201 == len(connection.trailers)


async def test_streams_of_a_connection(front: World) -> None:
    """Calls beyond CONNECTION_CALLS_MAX on one connection are refused by HTTP/2; clients of gRPC wait instead."""
    async with connections(front, 1) as (connection,):
        streams = [connection.start_call(HOT.encode()) for _ in range(limits.CONNECTION_CALLS_MAX + 1)]
        await until(lambda: {streams[-1]} == ended(connection))


async def test_headers_that_never_end(front: World) -> None:
    """A caller whose headers exceed HEADER_LIST_BYTES_MAX loses its connection."""
    continuation = 9
    async with connections(front, 1) as (connection,):
        connection.send(frame(HEADERS, 0, 1, call_headers(HOT.encode())))
        field = b"\x00\x01x\x7f\x81\x7f" + bytes(FRAME_BYTES_MAX - 6)
        for _ in range(2 * limits.HEADER_LIST_BYTES_MAX // FRAME_BYTES_MAX):
            connection.send(frame(continuation, 0, 1, field))
        await asyncio.wait_for(connection.wait_closed(), CALL_SECONDS_MAX)
    assert [[b"still here"], grpc.StatusCode.OK] == await call(front)
