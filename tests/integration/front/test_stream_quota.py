"""The quota of streams holds for streams of proposals, on both transports."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from gavel_client.rpc.errors import GavelError
from gavel_server.fairness.quotas import QuotaLimits, Quotas
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import ARBITRATION

from tests.integration.front.world import CALL_SECONDS_MAX, PROPOSALS, World

STREAMS: Final = 2


async def open_stream(channel: grpc.aio.Channel, world: World) -> Any:
    """Return a stream of proposals whose first one was answered. Raises AioRpcError if it is refused."""
    many: Any = channel.stream_stream(PROPOSALS)
    stream = many(timeout=CALL_SECONDS_MAX)
    reading = asyncio.ensure_future(stream.read())
    await stream.write(b"proposal")
    arriving = asyncio.ensure_future(world.requests.get())
    await asyncio.wait((reading, arriving), return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        arriving.cancel()
        await reading
    *_, answer = await arriving
    answer(b"answer")
    assert b"answer" == await reading
    return stream


async def refusal_of(channel: grpc.aio.Channel, world: World) -> GavelError | None:
    """Open a stream and cancel it; return the error if it is refused."""
    while True:
        try:
            (await open_stream(channel, world)).cancel()
        except grpc.aio.AioRpcError as error:
            refusal = GavelError.from_rpc_error(error)
            if refusal.code is not grpc.StatusCode.UNAVAILABLE:  # gRPC has lost the status: it came while the proposal was being sent
                return refusal
        else:
            return None


async def test_streams_beyond_the_quota(world: World) -> None:
    """A stream of proposals beyond the quota is refused before the server sees a proposal; streams that end or break off make room."""
    await world.stop()
    world = World(world.directory, world.transport)
    world.interceptor = Interceptor(quotas=Quotas(QuotaLimits(streams=STREAMS)))
    world.methods.update(world.interceptor.intercept(ARBITRATION, dict(world.methods)))
    await world.serve()
    await world.start()
    try:
        channel = world.channels[1]
        streams = [await open_stream(channel, world) for _ in range(STREAMS)]
        error = await refusal_of(channel, world)
        assert error is not None
        assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED") == (error.code, error.reason)
        assert world.requests.empty()
        await streams[0].done_writing()
        assert grpc.aio.EOF == await streams[0].read()
        streams[0] = await open_stream(channel, world)
        for stream in streams:
            stream.cancel()
        async with asyncio.timeout(CALL_SECONDS_MAX):
            while await refusal_of(channel, world) is not None:  # noqa: ASYNC110  # the server hears of it later, and sets no event
                await asyncio.sleep(0.05)
    finally:
        await world.stop()
