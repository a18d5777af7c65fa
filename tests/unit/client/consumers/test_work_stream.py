"""Streams of work that the server refuses or ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import grpc
import grpc.aio
import pytest
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.work_service_pb2 import ConsumeRequest, ConsumeResponse, ConsumerOpened, OpenConsumer
from gavel_client import GavelClient
from gavel_client.consumers.consumer import Consumer, Disposition
from gavel_client.consumers.fact_collector import FactCollector
from gavel_client.consumers.work_source import START
from gavel_client.consumers.work_stream import WorkStream
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.errors import WorkQueueError


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


class ScriptedService:
    """Serves Consume by `answers`, one for each stream: a code that refuses it, or None, with which it opens and stays open."""

    def __init__(self, *answers: grpc.StatusCode | None) -> None:
        self.answers = list(answers)
        self.openings: list[OpenConsumer] = []
        self.is_over = asyncio.Event()
        self.end = asyncio.Event()

    async def consume(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        """Refuse the stream, or open it and end it with UNAVAILABLE once `end` is set."""
        self.openings.append(ConsumeRequest.FromString(await anext(requests)).open)
        answer = self.answers.pop(0)
        if not self.answers:
            self.is_over.set()
        if answer is not None:
            await context.abort(answer, "scripted")
        yield ConsumeResponse(opened=ConsumerOpened(consumer="c")).SerializeToString()
        await self.end.wait()
        self.end.clear()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted")


@asynccontextmanager
async def serving(consume: Any) -> AsyncIterator[str]:
    """Serve Consume; return the address."""
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Consume": grpc.stream_stream_rpc_method_handler(consume)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("gavel.v1.WorkService", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def read_until(stream: WorkStream, condition: Callable[[], bool]) -> None:
    """Read, as a consumer does, until a condition holds."""
    while not condition():
        assert await stream.read() is None


FATAL = [
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
]


@pytest.mark.parametrize("code", FATAL)
async def test_refused_from_the_start(code: grpc.StatusCode, backoff: Backoff) -> None:
    """A consumer whose first stream is refused ends: its settings or its rights are wrong."""
    async with serving(ScriptedService(code).consume) as target, GavelClient(target) as client:
        stream = WorkStream(client, queue="decisions", group="couriers", concurrency=1, backoff=backoff)
        with pytest.raises(WorkQueueError, match=f"cannot be used: {code.name}"):
            await read_until(stream, lambda: False)
        await stream.close()


@pytest.mark.long
@pytest.mark.parametrize("code", FATAL)
async def test_refused_once_a_stream_has_been_open(code: grpc.StatusCode, backoff: Backoff) -> None:
    """A refusal ends no consumer that has been served: neither of its stream that opens again, nor of an additional one."""
    service = ScriptedService(None, code, None, code, code, None)
    async with serving(service.consume) as target, GavelClient(target) as client:
        stream = WorkStream(client, queue="decisions", group="couriers", concurrency=1, backoff=backoff)
        await read_until(stream, lambda: len(service.openings) == 1)
        service.end.set()
        await read_until(stream, lambda: len(service.openings) == 3)
        stream.note_pauses(1)
        await read_until(stream, service.is_over.is_set)
        await read_until(stream, lambda: not stream.problem)
        await stream.close()
    assert 6 == len(service.openings)


async def test_a_provider_of_tokens_that_fails_once(backoff: Backoff, caplog: pytest.LogCaptureFixture) -> None:
    """A provider of tokens that fails once ends no consumer, and its text is in no log."""
    service = ScriptedService(None, None)
    answers: list[str | Exception] = ["token", OSError("secret"), "token"]

    def token() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with serving(service.consume) as target, GavelClient(target, credentials=token) as client:
        stream = WorkStream(client, queue="decisions", group="couriers", concurrency=1, backoff=backoff)
        await read_until(stream, lambda: len(service.openings) == 1)
        service.end.set()
        await read_until(stream, service.is_over.is_set)
        await stream.close()
    assert "secret" not in caplog.text


async def test_a_provider_of_tokens_that_never_works(backoff: Backoff, caplog: pytest.LogCaptureFixture) -> None:
    """A provider of tokens that has never returned one ends the consumer, and its text is in no log."""

    def token() -> str:
        raise TypeError("secret")

    stream = WorkStream(GavelClient(credentials=token), queue="decisions", group="couriers", concurrency=1, backoff=backoff)
    with pytest.raises(WorkQueueError, match=r"cannot be used: TypeError at test_work_stream\.py:"):
        await read_until(stream, lambda: False)
    await stream.close()
    assert "secret" not in caplog.text


async def test_an_unexpected_error_of_a_stream(backoff: Backoff, caplog: pytest.LogCaptureFixture) -> None:
    """A stream that ends with an error that is none of the client's is opened again, and the error's text is in no log."""
    calls: list[int] = []
    again = asyncio.Event()

    class Client(GavelClient):
        async def consume(self, requests: Any) -> AsyncGenerator[ConsumeResponse, None]:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("secret")
            again.set()
            await asyncio.Event().wait()
            yield ConsumeResponse()

    stream = WorkStream(Client(), queue="decisions", group="couriers", concurrency=1, backoff=backoff)
    await read_until(stream, again.is_set)
    await stream.close()
    assert "stream broken: ValueError at test_work_stream.py:" in caplog.text
    assert "secret" not in caplog.text


async def test_claims_are_as_rare_as_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer whose entries come again at once does not claim without a pause: the server delivers them."""
    pauses: list[float] = []
    has_paused = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            has_paused.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    source = AsyncMock(min_idle_ms=1, silence_ms_max=3_000, problem="")
    source.claim.return_value = START, None
    source.read.side_effect = asyncio.Event().wait
    consumer = Consumer(source, AsyncMock(), concurrency=2)
    running = asyncio.create_task(consumer.run())
    await has_paused.wait()
    consumer.stop()
    await running
    assert [1.0, 1.0] == pauses


@pytest.mark.long
@pytest.mark.parametrize(("min_idle_ms", "silence_ms_max"), [(1, 1_000), (30_000, 30_000), (86_400_000, 600_000)])
async def test_heartbeats(min_idle_ms: int, silence_ms_max: int) -> None:
    """A consumer sends three heartbeats in the silence that it has promised the server, however long its entries may be idle."""
    service = ScriptedService(None)
    async with serving(service.consume) as target, GavelClient(target) as client:
        stream = WorkStream(client, queue="decisions", group="couriers", concurrency=1, min_idle_ms=min_idle_ms)
        await read_until(stream, service.is_over.is_set)
        await stream.close()
    assert [silence_ms_max] == [opening.silence_ms_max for opening in service.openings]
    assert silence_ms_max == stream.silence_ms_max


async def test_the_interval_of_heartbeats() -> None:
    """A consumer sends its heartbeats by the silence that it may keep, not by the time until entries are delivered again."""
    was_sent = asyncio.Event()

    class Stream(WorkStream):
        async def heartbeat(self, entry_ids: Sequence[str]) -> None:
            was_sent.set()

    async def process(_: Envelope) -> Disposition:
        return Disposition.DELETE

    async with serving(ScriptedService(None).consume) as target, GavelClient(target) as client:
        stream = Stream(client, queue="decisions", group="couriers", concurrency=1, min_idle_ms=86_400_000)
        stream.silence_ms_max = 3
        consumer = Consumer(stream, process, concurrency=1)
        running = asyncio.create_task(consumer.run())
        await was_sent.wait()
        consumer.stop()
        await running


@pytest.mark.parametrize("retry_ms", [-1, 0, 86_400_001])
def test_delays_that_the_server_does_not_take(retry_ms: int) -> None:
    """A delay that the server would refuse, and with it the stream, is an error at the start."""
    with pytest.raises(ValueError, match=f"cannot be delivered again after {retry_ms} ms; the server takes 1 to 86400000 ms"):
        FactCollector(GavelClient(), {"order.status": AsyncMock()}, producer=Producer(id="orders-db"), retry_ms=retry_ms)


async def test_streams_that_the_server_ends_leave_no_tasks() -> None:
    """Streams that the server has ended leave no task behind, however often the consumer opens them again."""
    service = BusyService()
    async with serving(service.consume) as target, GavelClient(target) as client:
        backoff = Backoff(initial_ms=10, maximum_ms=10)
        stream = WorkStream(client, queue="decisions", group="couriers", concurrency=1, backoff=backoff)
        reading = asyncio.create_task(stream.read())
        await service.was_busy.wait()
        waiting = [task for task in asyncio.all_tasks() if "_consume_request_iterator" in repr(task.get_coro())]
        assert len(waiting) <= 2
        reading.cancel()
        await stream.close()
