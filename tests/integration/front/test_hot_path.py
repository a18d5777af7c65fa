"""What goes over the link between front and server: each request to its method, each answer to its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from gavel.v1 import error_pb2
from gavel_server.errors import ServiceError
from gavel_server.front.link import METHODS
from gavel_server.streaming import STREAM_REQUESTS_MAX
from google.rpc.error_details_pb2 import ErrorInfo

from tests.integration.front.world import CALL_SECONDS_MAX, HOT, LATE_SECONDS, MEMORY_KIB_MAX, PROPOSALS, UNARY, World, ended, memory_kib

UNDER_WAY = 10_000


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
        leavers = [asyncio.create_task(ended(left(b"left", timeout=CALL_SECONDS_MAX))) for _ in range(50)]
        late = [asyncio.create_task(ended(call(b"late", timeout=LATE_SECONDS))) for _ in range(50)]
        staying = [asyncio.create_task(ended(call(b"%d" % number, timeout=CALL_SECONDS_MAX))) for number in range(50)]
        cancelled = call(b"cancelled")
        asked = [await front.asked.get() for _ in range(151)]
        cancelled.cancel()
        await asyncio.gather(*late)
    await asyncio.gather(*leavers)
    for _, request, reply in reversed(asked):
        reply(b"answer to " + request)
    assert [b"answer to %d" % number for number in range(50)] == await asyncio.gather(*staying)


async def test_ten_thousand_calls_under_way(front: World) -> None:
    """Ten thousand calls that wait at once are all answered, each with its own, and the front's memory stays within bounds."""
    call: Any = front.channels[1].unary_unary(HOT)
    calling = [asyncio.create_task(ended(call(b"%d" % number))) for number in range(UNDER_WAY)]
    asked = [await front.asked.get() for _ in calling]
    assert memory_kib(front.process_id) < MEMORY_KIB_MAX
    for _, request, reply in reversed(asked):
        reply(request)
    assert [b"%d" % number for number in range(UNDER_WAY)] == await asyncio.gather(*calling)
