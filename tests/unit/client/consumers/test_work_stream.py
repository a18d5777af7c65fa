"""Streams of work that the server ends."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from gavel_client import GavelClient
from gavel_client.consumers.work_stream import WorkStream
from gavel_client.rpc.backoff import Backoff


class BusyService:
    """Serves Consume: reads the opening of each stream, and ends it. Sets `was_busy` after 20 streams."""

    def __init__(self) -> None:
        self.streams = 0
        self.was_busy = asyncio.Event()

    async def consume(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """End the stream."""
        self.streams += 1
        if self.streams == 20:
            self.was_busy.set()
        await anext(requests)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")


async def test_streams_that_the_server_ends_leave_no_tasks() -> None:
    """Streams that the server has ended leave no task behind, however often the consumer opens them again."""
    service = BusyService()
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Consume": grpc.stream_stream_rpc_method_handler(service.consume)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("gavel.v1.WorkService", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with GavelClient(f"127.0.0.1:{port}") as client:
        backoff = Backoff(initial_ms=10, maximum_ms=10)
        stream = WorkStream(client, queue="decisions", group="couriers", concurrency=1, backoff=backoff)
        reading = asyncio.create_task(stream.read())
        await service.was_busy.wait()
        waiting = [task for task in asyncio.all_tasks() if "_consume_request_iterator" in repr(task.get_coro())]
        assert len(waiting) <= 2
        reading.cancel()
        await stream.close()
    await server.stop(None)
