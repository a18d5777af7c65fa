"""What a front passes on: what one side sends, the other one gets, as if there were no front."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gavel_server.transport import RECEIVE_BYTES_MAX, SEND_BYTES_MAX

from tests.integration.front.world import HOT, LARGE_ERROR, LATE_SECONDS, MEMORY_KIB_MAX, STREAM, TRAILERS, UNARY, World, memory_kib

# Between a few MiB, which the transport sends and receives, and its limits.
LARGE_BYTES = 5 * 1024 * 1024


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


@pytest.mark.parametrize("size", [20_000, 500_000])
async def test_too_much_metadata(front: World, size: int) -> None:
    """Metadata that is too large for the server is an error of that call, and of no other on the connection."""
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
