"""The hot path on each transport: each request reaches its method, each answer its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front.frames import METHODS
from gavel_server.rpc.limits import CONNECTION_CALLS_MAX
from gavel_server.rpc.streaming import STREAM_REQUESTS_MAX
from google.rpc.error_details_pb2 import ErrorInfo

from tests.integration.front.world import (
    CALL_SECONDS_MAX,
    HOT,
    LATE_SECONDS,
    MEMORY_KIB_MAX,
    PROPOSALS,
    UNARY,
    World,
    memory_kib,
    result_of,
)

UNDER_WAY = 10_000


async def test_each_call_reaches_its_method(front: World) -> None:
    """A request reaches its method byte for byte, and the answer or error reaches the caller."""
    error = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "the log is away: ü", retry_after_ms=1234)
    for result in (b"", b"answer", error):
        for name in METHODS[:-1]:
            coroutine = front.call(front.channels[1], f"/gavel.v1.ArbitrationService/{name}", b"\x00" + name.encode())
            calling = asyncio.create_task(coroutine)
            method, request, reply = await front.requests.get()
            assert (name, b"\x00" + name.encode()) == (method, request)
            reply(result)
            answers, code, details, status, *_ = await calling
            if isinstance(result, ServiceError):
                assert ([], error.code, error.message, error.status()) == (answers, code, details, status)
                info = ErrorInfo()
                assert status.details[0].Unpack(info)
                assert "LOG_UNAVAILABLE" == info.reason
            else:
                assert ([result], grpc.StatusCode.OK) == (answers, code)


async def test_each_request_of_a_stream_has_its_own_answer(front: World) -> None:
    """The requests of a stream reach the server one by one; answers return as they come, and the stream ends after the last."""
    calling = asyncio.create_task(front.call(front.channels[1], PROPOSALS, b"first", b"second", b""))
    requests = [await front.requests.get() for _ in range(3)]
    assert [("StreamProposals", b"first"), ("StreamProposals", b"second"), ("StreamProposals", b"")] == [one[:2] for one in requests]
    for (_, request, reply), number in reversed(list(zip(requests, range(3), strict=True))):
        reply(b"%d: answer to " % number + request)
    assert ([b"2: answer to ", b"1: answer to second", b"0: answer to first"], grpc.StatusCode.OK) == tuple((await calling)[:2])
    assert [[], grpc.StatusCode.OK] == (await front.call(front.channels[1], PROPOSALS))[:2]


async def test_an_error_ends_a_stream_after_the_answers_under_way(front: World) -> None:
    """An error of the server ends the stream after the requests under way are answered."""
    error = ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "going")
    calling = asyncio.create_task(front.call(front.channels[1], PROPOSALS, b"slow", b"refused"))
    (*_, slow), (*_, failing) = [await front.requests.get() for _ in range(2)]
    failing(error)
    await asyncio.sleep(0.05)
    slow(b"answer")
    assert [[b"answer"], grpc.StatusCode.UNAVAILABLE, "going", error.status()] == (await calling)[:4]


async def test_a_stream_reads_a_limited_number_of_requests(front: World) -> None:
    """STREAM_REQUESTS_MAX requests of a stream are under way; the next is read once an answer has been sent."""
    call: Any = front.channels[1].stream_stream(PROPOSALS)
    count = STREAM_REQUESTS_MAX + 20
    stream = call(b"%d" % number for number in range(count))
    requests = [await front.requests.get() for _ in range(STREAM_REQUESTS_MAX)]
    await asyncio.sleep(0.2)
    assert front.requests.empty()
    answers = 0
    for _ in range(count):
        _, request, reply = requests.pop(0) if requests else await front.requests.get()
        reply(request)
        answers += len([await stream.read()])
    assert (count, grpc.aio.EOF) == (answers, await stream.read())


async def test_a_stream_whose_caller_leaves(front: World) -> None:
    """A stream whose caller has gone is dropped with its requests under way, and other calls are answered."""
    call: Any = front.channels[1].stream_stream(PROPOSALS)
    stream = call(iter((b"left", b"left")))
    requests = [await front.requests.get() for _ in range(2)]
    stream.cancel()
    await asyncio.sleep(0.05)
    for *_, reply in requests:
        reply(b"too late")
    assert [b"echo"] == (await front.call_both(UNARY, b"echo echo"))[0]


async def test_calls_of_callers_that_leave_are_dropped(front: World) -> None:
    """Calls that are cancelled, reach their deadline or lose their connection are dropped; the others get their own answers."""
    call: Any = front.channels[1].unary_unary(HOT)
    async with grpc.aio.insecure_channel(front.address) as leaving:
        lost_call: Any = leaving.unary_unary(HOT)
        await asyncio.gather(leaving.channel_ready(), front.channels[1].channel_ready())
        leavers = [asyncio.create_task(result_of(lost_call(b"left", timeout=CALL_SECONDS_MAX))) for _ in range(50)]
        expired = [asyncio.create_task(result_of(call(b"late", timeout=LATE_SECONDS))) for _ in range(50)]
        staying = [asyncio.create_task(result_of(call(b"%d" % number, timeout=CALL_SECONDS_MAX))) for number in range(50)]
        cancelled = call(b"cancelled")
        requests = [await front.requests.get() for _ in range(151)]
        cancelled.cancel()
        await asyncio.gather(*expired)
    await asyncio.gather(*leavers)
    for _, request, reply in reversed(requests):
        reply(b"answer to " + request)
    assert [b"answer to %d" % number for number in range(50)] == await asyncio.gather(*staying)


@pytest.mark.parametrize("leave", ["cancel", "deadline", "disconnect"])
async def test_the_server_hears_that_a_caller_has_gone(front: World, leave: str) -> None:
    """When a caller leaves, the contexts of its waiting calls and stream requests are cancelled; those of other calls are not."""
    staying = asyncio.create_task(front.call(front.channels[1], HOT, b"staying"))
    *_, reply = await front.requests.get()
    async with grpc.aio.insecure_channel(front.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        timeout = LATE_SECONDS if leave == "deadline" else CALL_SECONDS_MAX
        unary: Any = channel.unary_unary(HOT)
        stream: Any = channel.stream_stream(PROPOSALS)
        calls: list[Any] = [unary(b"left", timeout=timeout), stream(iter((b"left", b"left")), timeout=timeout)]
        for _ in range(3):
            await front.requests.get()
        assert [False] * 4 == [context.cancellation.is_cancelled for context in front.contexts]
        if leave == "cancel":
            for call in calls:
                call.cancel()
        elif leave == "disconnect":
            await channel.close()
        async with asyncio.timeout(CALL_SECONDS_MAX):
            while not all(context.cancellation.is_cancelled for context in front.contexts[1:]):  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0.01)
    assert not front.contexts[0].cancellation.is_cancelled
    reply(b"answer")
    assert [b"answer"] == (await staying)[0]


@pytest.mark.long
async def test_ten_thousand_calls_under_way(front: World) -> None:
    """Ten thousand calls that wait at once each get their own answer, and the front's memory stays within bounds."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(front.address, options=options) for _ in range(UNDER_WAY // CONNECTION_CALLS_MAX + 1)]
    calls: list[Any] = [channel.unary_unary(HOT) for channel in channels]
    calling = [asyncio.create_task(result_of(calls[number % len(calls)](b"%d" % number))) for number in range(UNDER_WAY)]
    requests = [await front.requests.get() for _ in calling]
    if front.transport == "native":
        assert memory_kib(front.process_id) < MEMORY_KIB_MAX
    for _, request, reply in reversed(requests):
        reply(request)
    assert [b"%d" % number for number in range(UNDER_WAY)] == await asyncio.gather(*calling)
    for channel in channels:
        await channel.close()
