"""Retry advice in trailing metadata, and gRPC's own retries with the service config of docs/clients.md, on both transports."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel_server.errors import PUSHBACK_KEY, ServiceError, invalid

from tests.integration.front.world import ACTIVATE, CALL_SECONDS_MAX, HOT, STREAM, UNARY, World
from tests.support.paths import ROOT

BUSY = ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, "full", retry_after_ms=37)
UNAVAILABLE = ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "away")
HOPELESS = ServiceError(error_pb2.ERROR_REASON_COMPILE_LIMIT_EXCEEDED, "too large")
MISTAKE = invalid([("field", "is bad")])


def service_config() -> str:
    """Return the service config that docs/clients.md recommends."""
    section = (ROOT / "docs/clients.md").read_text(encoding="utf-8").partition("## Retries by gRPC")[2]
    match = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert match is not None
    json.loads(match[1])
    return match[1]


def pushback(metadata: Any) -> list[str]:
    """Return the values of the retry advice in trailing metadata."""
    return [value for key, value in metadata if key == PUSHBACK_KEY]


@pytest.mark.parametrize(
    ("error", "expected"), [(BUSY, ["37"]), (UNAVAILABLE, ["200"]), (HOPELESS, ["-1"]), (invalid([("field", "is bad")]), [])]
)
async def test_advice_of_the_hot_path(front: World, error: ServiceError, expected: list[str]) -> None:
    """An error with a RetryInfo has its delay in the trailing metadata; a lasting limit says not to try again, another error nothing."""
    call_method: Any = front.channels[1].unary_unary(HOT)
    call = call_method(b"", timeout=CALL_SECONDS_MAX)
    _, _, reply = await front.requests.get()
    reply(error)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert expected == pushback(caught.value.trailing_metadata() or ())


async def test_advice_of_other_methods(front: World) -> None:
    """The other methods, unary and streaming, advise the same through the front as without one."""
    for channel in front.channels:
        for method in (UNARY, STREAM):
            call_method: Any = channel.unary_stream(method)
            call = call_method(b"busy 37", timeout=CALL_SECONDS_MAX)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert grpc.StatusCode.RESOURCE_EXHAUSTED == caught.value.code()
            assert ["37"] == pushback(caught.value.trailing_metadata() or ())


async def test_grpc_retries_with_the_service_config(front: World) -> None:
    """A channel with the documented service config repeats a call that the server refuses for now, until it is answered."""
    options = [("grpc.service_config", service_config()), ("grpc.enable_retries", 1)]
    async with grpc.aio.insecure_channel(front.address, options=options) as channel:
        call_method: Any = channel.unary_unary(HOT)
        call = call_method(b"request", timeout=CALL_SECONDS_MAX)
        waiting = asyncio.ensure_future(call)
        for result in (BUSY, UNAVAILABLE, BUSY, b"answer"):
            _, request, reply = await front.requests.get()
            assert b"request" == request
            reply(result)
        assert b"answer" == await waiting


async def test_grpc_retries_neither_mistakes_nor_activations(front: World) -> None:
    """With the service config a mistake of the caller, and an activation that fails, are answered at once."""
    options = [("grpc.service_config", service_config()), ("grpc.enable_retries", 1)]
    async with grpc.aio.insecure_channel(front.address, options=options) as channel:
        call_method: Any = channel.unary_unary(HOT)
        call = call_method(b"request", timeout=CALL_SECONDS_MAX)
        waiting = asyncio.ensure_future(call)
        _, _, reply = await front.requests.get()
        reply(invalid([("field", "is bad")]))
        with pytest.raises(grpc.aio.AioRpcError):
            await waiting
        assert front.requests.empty()
        activation_method: Any = channel.unary_unary(ACTIVATE)
        activation = activation_method(b"busy 1", timeout=CALL_SECONDS_MAX)
        with pytest.raises(grpc.aio.AioRpcError):
            await activation
        assert 1 == front.scripted.refusals
        other_method: Any = channel.unary_unary(UNARY)
        other = other_method(b"busy 1", timeout=CALL_SECONDS_MAX)
        with pytest.raises(grpc.aio.AioRpcError):
            await other
        assert 1 + 5 == front.scripted.refusals
