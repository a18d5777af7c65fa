"""The interceptor before gRPC's own libraries: health and reflection pass it like our services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import HEALTH, NAMES, REFLECTION
from gavel_server.rpc.transport import bind, make_server
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2


class BrokenHealth(health.aio.HealthServicer):
    """A health servicer with a bug."""

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # the contract's name
        """Fail if "broken" is asked for."""
        if request.service == "broken":
            raise RuntimeError("secret detail")
        return await super().Check(request, context)


class LateHealth(health.aio.HealthServicer):
    """A health servicer that answers once more after its caller has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # type: ignore[override]  # noqa: N802  # may be a generator
        """Answer now, and when the call is cancelled."""
        try:
            yield health_pb2.HealthCheckResponse()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield health_pb2.HealthCheckResponse()
        finally:
            self.ended.set()


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with health and reflection."""
    server = make_server()
    interceptor = Interceptor()
    interceptor.register_library(server, HEALTH, BrokenHealth())
    interceptor.register_library(server, REFLECTION, reflection.aio.ReflectionServicer(NAMES))
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
    await server.stop(None)


async def check(channel: grpc.aio.Channel, request: bytes) -> bytes:
    """Ask for a service's health."""
    call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    return bytes(await call(request))


async def test_library_services_answer(channel: grpc.aio.Channel) -> None:
    """Unary calls, streams of answers that a method writes, and streams both ways are answered."""
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    assert serving == health_pb2.HealthCheckResponse.FromString(await check(channel, b""))
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
    watching = watch(b"")
    assert serving == health_pb2.HealthCheckResponse.FromString(await watching.read())
    watching.cancel()
    reflect: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    (answer,) = [reflection_pb2.ServerReflectionResponse.FromString(data) async for data in reflect(iter([request]))]
    assert {*NAMES} == {service.name for service in answer.list_services_response.service}


async def test_status_of_a_library_is_passed_on(channel: grpc.aio.Channel) -> None:
    """A library ends a call with a status of its own."""
    with pytest.raises(grpc.aio.AioRpcError) as error_info:
        await check(channel, health_pb2.HealthCheckRequest(service="unknown").SerializeToString())
    assert grpc.StatusCode.NOT_FOUND == error_info.value.code()


@pytest.mark.parametrize(
    ("request_", "code"), [(b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT), (b"\x0a\x06broken", grpc.StatusCode.INTERNAL)]
)
async def test_errors_are_those_of_the_error_table(channel: grpc.aio.Channel, request_: bytes, code: grpc.StatusCode) -> None:
    """Bytes that are not a request, and a bug of the library, are errors of the table, without internals."""
    with pytest.raises(grpc.aio.AioRpcError) as error_info:
        await check(channel, request_)
    assert code == error_info.value.code()
    assert "secret" not in str(error_info.value.details())


async def test_methods_without_an_implementation_are_not_served(channel: grpc.aio.Channel) -> None:
    """A method that the library leaves out is UNIMPLEMENTED."""
    call: Any = channel.unary_unary("/grpc.health.v1.Health/List")
    with pytest.raises(grpc.aio.AioRpcError) as error_info:
        await call(b"")
    assert grpc.StatusCode.UNIMPLEMENTED == error_info.value.code()


async def test_answer_to_a_gone_caller_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A response that is written after the caller has gone ends the call, and nothing is logged."""
    server = make_server()
    servicer = LateHealth()
    Interceptor().register_library(server, HEALTH, servicer)
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert b"" == await watch(b"").read()
    await servicer.ended.wait()
    await server.stop(None)
    captured = capsys.readouterr()
    assert "call.failed" not in captured.out + captured.err
