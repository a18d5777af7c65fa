"""Headers that few clients send: calls that end with their headers, metadata that nearly fills its limit, and malformed values."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from gavel_server.rpc.limits import HEADER_BYTES_MAX, REQUEST_SECONDS_MAX

from tests.e2e.world import Server, poll
from tests.support.http2 import CONTINUATION, END_HEADERS, END_STREAM, HEADERS, Http2Connection, call_headers, frame, grpc_status

INVALID_ARGUMENT: Final = grpc.StatusCode.INVALID_ARGUMENT.value[0]
STATUS: Final = "/gavel.v1.ProjectionService/GetStatus"
# By method: the status of a call without a message. A stream of requests may be empty, unless its first request opens it.
STATUSES: Final = {
    "/gavel.v1.ArbitrationService/SubmitProposal": INVALID_ARGUMENT,
    "/gavel.v1.ArbitrationService/StreamProposals": 0,
    "/gavel.v1.EventService/SubscribeEvents": INVALID_ARGUMENT,
    "/gavel.v1.WorkService/Consume": INVALID_ARGUMENT,
    "/grpc.health.v1.Health/Watch": INVALID_ARGUMENT,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 0,
    STATUS: INVALID_ARGUMENT,
}
# Empty values: with its name and 32 bytes, as HTTP/2 counts them, each takes 38 bytes.
MANY_KEYS: Final = tuple((f"key{number:03}", "") for number in range((HEADER_BYTES_MAX - 2_000) // 38))


@pytest.fixture(params=[0, 1], ids=["front", "no-front"])
def server(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with a front, and one without. Its log must have no lines of gRPC, such as "E1127 12:00:00.000000 …"."""
    chosen = pair[request.param]
    before = len(chosen.log())
    yield chosen
    assert [] == re.findall("^[EWI][0-9]{4} .*", chosen.log()[before:], re.MULTILINE)


async def trailers_of(connection: Http2Connection, count: int) -> dict[int, bytes]:
    """Return the trailers of the connection's calls once so many have ended, which must be soon."""

    async def ended() -> dict[int, bytes] | None:
        return connection.trailers if len(connection.trailers) >= count else None

    async with asyncio.timeout(REQUEST_SECONDS_MAX / 2):
        return await poll(ended)


async def test_calls_that_end_with_their_headers(server: Server) -> None:
    """A call whose headers are all that its caller sends is answered at once: it has no message."""
    connection = await Http2Connection.open_plain(server.address)
    expected: dict[int, int] = {}
    try:
        for number, (method, status) in enumerate(STATUSES.items()):
            block, whole, split = call_headers(method.encode()), 4 * number + 1, 4 * number + 3
            connection.send(frame(HEADERS, END_STREAM | END_HEADERS, whole, block))
            # The second frame of headers has no flag for the end of the stream.
            connection.send(frame(HEADERS, END_STREAM, split, block[:20]) + frame(CONTINUATION, END_HEADERS, split, block[20:]))
            expected |= {whole: status, split: status}
        trailers = await trailers_of(connection, len(expected))
    finally:
        await connection.close()
    assert expected == {stream: grpc_status(payload) for stream, payload in trailers.items()}


@pytest.mark.parametrize("metadata", [(("key", "x" * (HEADER_BYTES_MAX - 2_000)),), MANY_KEYS], ids=["long", "many"])
async def test_metadata_within_the_limit(server: Server, metadata: tuple[tuple[str, str], ...]) -> None:
    """Metadata of up to the limit passes every time, in one value or in many."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary(STATUS)
        codes = Counter([(await call(b"", metadata=metadata).code()).name for _ in range(30)])
    assert {"OK": 30} == codes


async def test_malformed_headers(server: Server) -> None:
    """Headers that gRPC cannot read end their call, and leave no line of gRPC in the log, which nothing would limit."""
    connection = await Http2Connection.open_plain(server.address)
    try:
        headers = ((b"grpc-timeout", b"x"), (b"grpc-encoding", b"x"), (b"grpc-timeout", b""))
        calls = {connection.start_call(STATUS.encode(), header) for header in headers}
        assert calls == (await trailers_of(connection, len(calls))).keys()
    finally:
        await connection.close()
