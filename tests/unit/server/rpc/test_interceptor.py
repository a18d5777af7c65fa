"""The interceptor before gRPC's own libraries: health and reflection pass it like our services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel.v1.work_service_pb2 import ConsumeRequest
from gavel_rules.identity.principal import Principal
from gavel_server.errors import ServiceError
from gavel_server.fairness.quotas import QuotaLimits, Quotas
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.reflection import Reflection
from gavel_server.rpc.service_descriptors import HEALTH, NAMES, REFLECTIONS, WORK
from gavel_server.rpc.telemetry.call_observer import CallObserver
from gavel_server.rpc.transport import bind, make_server
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from prometheus_client import REGISTRY


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
    for service in REFLECTIONS:
        interceptor.register_library(server, service, Reflection(NAMES))
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
    (answer,) = await reflect(channel, "v1alpha", ServerReflectionRequest(list_services=""))
    assert {*NAMES} == {service.name for service in answer.list_services_response.service}


async def reflect(channel: grpc.aio.Channel, version: str, *requests: ServerReflectionRequest) -> list[ServerReflectionResponse]:
    """Ask reflection of a version; the messages of both versions are the same."""
    call: Any = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
    encoded = iter([request.SerializeToString() for request in requests])
    return [ServerReflectionResponse.FromString(data) async for data in call(encoded)]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_finds_symbols(channel: grpc.aio.Channel, version: str) -> None:
    """Both versions find types, services and methods by their full names, with the file and all that it imports."""
    symbols = ["gavel.v1.Envelope", "gavel.v1.EventService", "gavel.v1.EventService.GetEvent", "grpc.reflection.v1.ServerReflection"]
    requests = [ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols]
    answers = await reflect(channel, version, *requests)
    assert requests == [answer.original_request for answer in answers]
    names = [
        [FileDescriptorProto.FromString(file).name for file in answer.file_descriptor_response.file_descriptor_proto] for answer in answers
    ]
    assert ["envelope.proto", "event_service.proto", "event_service.proto", "reflection.proto"] == [one[0].split("/")[-1] for one in names]
    assert "google/protobuf/timestamp.proto" in names[0]
    assert names[1] == names[2]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@pytest.mark.parametrize("symbol", ["", ".", "No", "gavel.v1.No", "gavel.v1.EventService.No", "gavel.v1.Envelope.subject.no", "a..b"])
async def test_reflection_of_unknown_symbols(channel: grpc.aio.Channel, version: str, symbol: str) -> None:
    """An unknown symbol is NOT_FOUND as an answer, and the stream goes on."""
    request = ServerReflectionRequest(file_containing_symbol=symbol)
    answers = await reflect(channel, version, request, ServerReflectionRequest(list_services="*"))
    assert grpc.StatusCode.NOT_FOUND.value[0] == answers[0].error_response.error_code
    assert len(NAMES) == len(answers[1].list_services_response.service)


async def test_streams_of_libraries_count() -> None:
    """Streams of health and reflection, which need no right or not even credentials, are limited as all others are."""
    server, interceptor = make_server(), Interceptor(quotas=Quotas(QuotaLimits(streams=2)))
    interceptor.register_library(server, HEALTH, health.aio.HealthServicer())
    interceptor.register_library(server, REFLECTIONS[0], Reflection(NAMES))
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        watching = [watch(b"", timeout=30) for _ in range(2)]
        for stream in watching:
            assert await stream.read()
        reflection: Any = channel.stream_stream(f"/{REFLECTIONS[0].full_name}/ServerReflectionInfo")
        for refused in (watch(b"", timeout=30), reflection(iter([b""]), timeout=30)):
            with pytest.raises(grpc.aio.AioRpcError) as error_info:
                await refused.read()
            assert grpc.StatusCode.RESOURCE_EXHAUSTED == error_info.value.code()
        assert await check(channel, b"")
    await server.stop(None)


async def test_messages_of_reflection_are_charged() -> None:
    """Each message of a reflection stream counts against the quota of its caller; health checks are answered all the same."""
    server, interceptor = make_server(), Interceptor(quotas=Quotas(QuotaLimits(calls_per_second=1)))
    interceptor.register_library(server, HEALTH, health.aio.HealthServicer())
    interceptor.register_library(server, REFLECTIONS[0], Reflection(NAMES))
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        reflection: Any = channel.stream_stream(f"/{REFLECTIONS[0].full_name}/ServerReflectionInfo")
        call = reflection(timeout=30)
        with pytest.raises(grpc.aio.AioRpcError) as refused:  # noqa: PT012  # each message waits for the answer to the one before it
            for _ in range(100):
                await call.write(b"")
                await call.read()
        assert grpc.StatusCode.RESOURCE_EXHAUSTED == refused.value.code()
        assert await check(channel, b"")
    await server.stop(None)


class RefusingWork:
    """A servicer of WorkService whose streams end with an error."""

    def __getattr__(self, method: str) -> Any:
        async def unary(request: Any, context: Any) -> None:
            """Answer nothing."""

        async def consume(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, f"no room on {request.open.bus}")
            yield

        return consume if method == "Consume" else unary


async def test_streams_of_work_are_observed() -> None:
    """The end of a stream in both directions counts like that of any other call, with its reason and its caller."""
    reason = {"principal": "anonymous", "reason": "QUEUE_FULL"}
    before = REGISTRY.get_sample_value("gavel_refusals_total", reason) or 0.0
    server, interceptor = make_server(), Interceptor(observer=CallObserver())
    interceptor.register(server, WORK, RefusingWork())
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        consume: Any = channel.stream_stream(f"/{WORK.full_name}/Consume")
        call = consume(timeout=30)
        await call.write(ConsumeRequest(open={"bus": "b"}).SerializeToString())  # type: ignore[arg-type]  # a dict will do
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    await server.stop(None)
    assert before + 1 == REGISTRY.get_sample_value("gavel_refusals_total", reason)


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


async def test_streams_of_a_library_are_guarded_until_their_end() -> None:
    """A guard that refuses a caller after the first answer ends its stream before the next one."""

    class ChattyHealth(health.aio.HealthServicer):
        async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # type: ignore[override]  # noqa: N802  # may be a generator
            for _ in range(2):
                yield health_pb2.HealthCheckResponse()

    checks = iter([None, None, ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, "no longer")])

    async def guard(request: Any, principal: Principal) -> None:
        error = next(checks)
        if error is not None:
            raise error

    server = make_server()
    Interceptor().register_library(server, HEALTH, ChattyHealth(), guard)
    address = bind(server, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        answers = aiter(watch(b""))
        assert b"" == await anext(answers)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(answers)
    await server.stop(None)
    assert grpc.StatusCode.PERMISSION_DENIED == caught.value.code()
