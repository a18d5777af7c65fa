"""Calls over grpc.aio that end with an error."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import HEALTH
from gavel_server.rpc.transport import bind, make_server
from grpc_health.v1 import health


@pytest.mark.long
@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_refused_call_leaves_no_garbage(method: str) -> None:
    """Nothing of a refused call waits for the collector of garbage, which may come only after many thousand calls."""
    server = make_server()
    Interceptor().register_library(server, HEALTH, health.aio.HealthServicer())
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_stream(f"/grpc.health.v1.Health/{method}")
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                assert grpc.StatusCode.INVALID_ARGUMENT == await call(b"no message of the contract").code()
            await asyncio.sleep(0)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            garbage = [error for error in gc.garbage if isinstance(error, grpc.aio.AbortError)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    await server.stop(None)
    assert [] == garbage
