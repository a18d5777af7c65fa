"""Calls that the front forwards: each side receives what the other sends, as without a front."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gavel_server.errors import invalid
from gavel_server.rpc.limits import RECEIVE_BYTES_MAX, SEND_BYTES_MAX, request_limit

from tests.integration.front.world import HOT, LARGE_ERROR, LATE_SECONDS, MEMORY_KIB_MAX, STREAM, TRAILERS, UNARY, World, memory_kib
from tests.support.fronts import FRONTS
from tests.support.http2 import END_STREAM, HEADERS, RST_STREAM, Http2Connection, grpc_status, message

BATCH = "/gavel.v1.ArbitrationService/BatchSubmitProposals"

pytestmark = pytest.mark.parametrize("world", FRONTS, indirect=True)


async def test_answers_of_every_length(front: World) -> None:
    """Single answers and streams of any length arrive whole, with the metadata that the server sets."""
    for content in (b"", b"one"):
        for method in (UNARY, STREAM):
            assert [[content], grpc.StatusCode.OK, "", None, list(TRAILERS), list(TRAILERS)] == await front.call_both(
                method, b"echo " + content
            )
    for count in (0, 1, 500):
        assert [b"%d" % number for number in range(count)] == (await front.call_both(STREAM, b"many %d" % count))[0]


@pytest.mark.parametrize(
    "method", ["/test/no", "/gavel.v1.ArbitrationService/No", "/grpc.reflection.v1.ServerReflection/No", "/No", "/a/b/c"]
)
async def test_unknown_methods(front: World, method: str) -> None:
    """A method that does not exist is UNIMPLEMENTED, with gRPC's message."""
    for channel in front.channels:
        answers, code, details, *_ = await front.call(channel, method, b"x")
        assert ([], grpc.StatusCode.UNIMPLEMENTED) == (answers, code)
        assert details in ("Method not found!", f'malformed method name: "{method}"')


async def test_methods_that_the_server_does_not_implement(front: World) -> None:
    """An error that the server returns at once arrives every time."""
    for _ in range(100):
        assert [[], grpc.StatusCode.UNIMPLEMENTED] == (await front.call_both("/gavel.v1.ToolService/BindTool", b"x"))[:2]


async def test_a_status_with_details(front: World) -> None:
    """An error that nearly fills the trailers arrives with message and details, after the answers before it."""
    for method, request, before in ((UNARY, b"fail", []), (STREAM, b"fail", []), (STREAM, b"fail first", [b"first"])):
        answers, code, details, status, *_ = await front.call_both(method, request)
        assert (before, grpc.StatusCode.FAILED_PRECONDITION, LARGE_ERROR.message) == (answers, code, details)
        assert LARGE_ERROR.status() == status


async def test_metadata(front: World) -> None:
    """A caller's metadata reaches the server, text and bytes, repeated keys in their order."""
    metadata = (("traceparent", "00-1"), ("many", "1"), ("many", "2"), ("some-bin", b"\x00\xff"))
    for method in (UNARY, STREAM):
        (answer,), *_ = await front.call_both(method, b"tell", metadata=metadata)
        assert repr(sorted(metadata)) == answer.decode()


@pytest.mark.parametrize("size", [20_000, 40_000])
async def test_too_much_metadata(front: World, size: int) -> None:
    """Metadata that is too large for the server is an error of that call alone, and not of its connection."""
    for channel in front.channels:
        stream: Any = channel.unary_stream(STREAM)
        staying = stream(b"wait")
        await front.scripted.entered.get()
        for metadata in ((("large", "x" * size),), (("large-bin", b"x" * size),)):
            answers, code, *_ = await front.call(channel, UNARY, b"echo x", metadata=metadata)
            assert ([], grpc.StatusCode.RESOURCE_EXHAUSTED) == (answers, code)
        assert not staying.done()
        staying.cancel()


async def test_deadlines(front: World) -> None:
    """The server gets the call's deadline if the call has one."""
    for channel in front.channels:
        for method in (UNARY, STREAM):
            (remaining,), *_ = await front.call(channel, method, b"remaining", timeout=1000.0)
            assert 900.0 < float(remaining) < 1020.0  # on the way it is rounded up
            assert [b"None"] == (await front.call(channel, method, b"remaining", timeout=None))[0]


@pytest.mark.parametrize("method", [UNARY, STREAM])
async def test_a_deadline_that_passes(front: World, method: str) -> None:
    """A call ends at its deadline, for the caller and for the server."""
    for channel in front.channels:
        while front.scripted.entered.empty():  # on a busy machine a call may reach its deadline before it arrives
            answers, code, *_ = await front.call(channel, method, b"wait", timeout=1.0)
            assert not answers
            # Cancelled: where a busy machine let the deadline itself end it, and the caller's clock was a moment behind.
            assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        await front.scripted.entered.get()
        await front.scripted.ended.get()


@pytest.mark.parametrize(("method", "request_"), [(UNARY, b"wait"), (STREAM, b"wait"), (STREAM, b"flood")])
async def test_cancelled_calls_end_at_the_server(front: World, method: str, request_: bytes) -> None:
    """The server's call ends if the caller cancels or loses its connection, whether the call is idle or busy."""
    for channel in front.channels:
        stream: Any = channel.stream_stream(method)
        call = stream(iter([request_]))
        await front.scripted.entered.get()
        call.cancel()
        await front.scripted.ended.get()
    lost_channel = grpc.aio.insecure_channel(front.address)
    stream = lost_channel.stream_stream(method)
    calls = [stream(iter([request_])) for _ in range(20)]
    for _ in calls:
        await front.scripted.entered.get()
    await lost_channel.close()
    for _ in calls:
        await front.scripted.ended.get()


@pytest.mark.long
@pytest.mark.timeout(400)  # moves many megabytes
async def test_backpressure_of_a_slow_reader(front: World) -> None:
    """Messages that a caller does not read are not gathered in the front's memory; the server has to wait."""
    stream: Any = front.channels[1].unary_stream(STREAM)
    calls = [stream(b"flood") for _ in range(20)]
    for call in calls:
        await call.read()
    flooded = -1
    while flooded != front.scripted.flooded:  # what the transport itself holds fills up first
        flooded = front.scripted.flooded
        await asyncio.sleep(LATE_SECONDS)
        assert memory_kib(front.process_id) < MEMORY_KIB_MAX
    for call in calls:
        call.cancel()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests(front: World, compression: grpc.Compression) -> None:
    """A caller may compress requests, on the hot path and elsewhere; the server gets them decompressed."""
    (answer,), *_ = await front.call_both(UNARY, b"echo " + b"x" * 100_000, compression=compression)
    assert b"x" * 100_000 == answer
    calling = asyncio.create_task(front.call(front.channels[1], HOT, b"y" * 100_000, compression=compression))
    _, request, reply = await front.requests.get()
    assert b"y" * 100_000 == request
    reply(request)
    assert [b"y" * 100_000] == (await calling)[0]


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("method", [UNARY, STREAM, HOT, BATCH])
async def test_sizes_of_requests(front: World, method: str, compression: grpc.Compression | None) -> None:
    """A request of its method's limit passes, compressed or not; one more byte, and far more, is INVALID_ARGUMENT that names the limit."""
    limit = request_limit(method.removeprefix("/")).bytes_max
    is_hot = method in (HOT, BATCH)
    unlimited = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    async with grpc.aio.insecure_channel(front.address, options=unlimited) as channel:
        request = b"echo ".ljust(limit, b"x")
        calling = asyncio.create_task(front.call(channel, method, request, compression=compression))
        if is_hot:
            _, data, reply = await front.requests.get()
            assert request == data
            reply(data[5:])
        assert [[request[5:]], grpc.StatusCode.OK] == (await calling)[:2]
        for size in (limit + 1, RECEIVE_BYTES_MAX + 1):
            answers, code, details, status, *_ = await front.call(channel, method, bytes(size), compression=compression)
            assert ([], grpc.StatusCode.INVALID_ARGUMENT, f"request is larger than {limit} bytes") == (answers, code, details)
            assert invalid([("request", f"is larger than {limit} bytes")]).status() == status
    assert front.requests.empty()


async def test_sizes_of_answers(front: World) -> None:
    """An answer of the transport's limit passes; a larger one is an error of that call alone."""
    (answer,), *_ = await front.call(front.channels[1], UNARY, b"grow %d" % SEND_BYTES_MAX)
    assert SEND_BYTES_MAX == len(answer)
    for channel in front.channels:
        answers, code, *_ = await front.call(channel, UNARY, b"grow %d" % (SEND_BYTES_MAX + 1))
        assert ([], False) == (answers, code == grpc.StatusCode.OK)
    assert [b"still here"] == (await front.call_both(UNARY, b"echo still here"))[0]


# Headers that no client of gRPC sends, and the status that both transports give the call: OK, DEADLINE_EXCEEDED or INTERNAL. A timeout
# is at most eight digits and a unit.
ODD_HEADERS = {
    (b"grpc-timeout", b"1H"): "0",
    (b"grpc-timeout", b"0n"): "4",
    (b"grpc-timeout", b"99999999H"): "0",
    (b"grpc-timeout", b"-1S"): "13",
    (b"grpc-timeout", b"1x"): "13",
    (b"grpc-timeout", b"1"): "13",
    (b"grpc-timeout", b""): "13",
    (b"grpc-odd", b"reserved"): "0",
    (b"empty", b""): "0",
    (b"empty-bin", b""): "0",
    (b"text-bin", b"!!"): "13",
    (b"padded-bin", b"AA=="): "0",
    (b"two-bin", b"AA,AQ"): "13",
    (b"content-type", b"text/plain"): "0",
}
# Where grpc.aio is more lenient than the front, or answers what HTTP/2 wants reset (RFC 9113 §8.2): its outcome, and that of the front.
DIFFERENCES = {
    (b"grpc-timeout", b"123456789S"): ("0", "13"),
    (b"grpc-timeout", b"1 S"): ("0", "13"),
    (b"not-utf-8", b"\xff\xfe"): ("0", "13"),
    (b"control", b"a\x01b"): ("0", "reset"),
    (b"connection", b"close"): ("0", "reset"),
    (b"Upper", b"x"): ("13", "reset"),
    (b"sp ace", b"x"): ("13", "reset"),
}


async def outcome(address: str, *headers: tuple[bytes, bytes]) -> str:
    """Call UNARY by hand; return the status of gRPC, or how else the call ended."""
    connection = await Http2Connection.open_plain(address)
    try:
        stream = connection.start_call(UNARY.encode(), *headers)
        connection.send_data(stream, message(b"echo x"))
        async with asyncio.timeout(20):
            while True:
                for kind, flags, number, payload in connection.frames:
                    if kind == RST_STREAM and number == stream:
                        return "reset"
                    if kind == HEADERS and flags & END_STREAM and number == stream:
                        status = grpc_status(payload)
                        return "no status" if status is None else str(status)
                if connection.is_closed:
                    return "closed"
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def test_odd_headers(front: World, capfd: pytest.CaptureFixture[str]) -> None:
    """Headers that no client of gRPC sends end a call with the same status on both transports, apart from those that are listed."""
    expected = {header: (status, status) for header, status in ODD_HEADERS.items()} | DIFFERENCES
    assert expected == {header: (await outcome(front.inner, header), await outcome(front.address, header)) for header in expected}
    capfd.readouterr()  # grpc.aio prints a line for each
