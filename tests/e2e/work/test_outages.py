"""Streams of work while a server is killed, Redis is suspended, a consumer reads nothing, or a caller opens too many."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from gavel.v1.work_service_pb2 import WORK_QUEUE_DECISIONS, ConsumeRequest, OpenConsumer
from gavel_client import GavelClient, GavelError
from gavel_client.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers
from gavel_server.front.programs import FrontSetting
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.work.consumer import consume
from tests.e2e.world import ACTION, Server, approve, open_bus, poll, prove, run_servers, wait_until_writable
from tests.support.fronts import ANY_FRONT, TRANSPORTS
from tests.support.http2 import Http2Connection, message
from tests.support.ports import free_port
from tests.support.redis.outages import Outage, asking_password, lacking_replicas
from tests.support.redis.tcp_proxy import running_proxy

Clients = tuple[GavelClient, GavelClient]
STREAMS_MAX = 3


async def settled(client: GavelClient) -> None:
    """Return once no item of the group waits, is pending or is parked."""

    async def is_settled() -> bool | None:
        groups = (await client.list_consumers()).consumers
        return not any(group.lag + group.pending + group.parked for group in groups if group.group == "executors") or None

    await poll(is_settled)


@pytest.mark.long
async def test_a_killed_server_loses_no_item(
    pair: tuple[Server, Server], clients: Clients, redis_url: str, bus: str, tmp_path: Path
) -> None:
    """Items of consumers whose server is killed are delivered by another server, and counted; what was acknowledged is not."""
    victim = Server(tmp_path / "victim", redis_url=redis_url, options=["--front", ANY_FRONT])
    with run_servers(victim):
        done, *held = [await approve(clients[0], f"parcel/{number}") for number in range(4)]
        async with (
            victim.client(bus, tries_max=1) as client,
            consume(client, in_flight_max=3) as first,
            consume(client, in_flight_max=1) as second,
        ):
            items = [*await first.take(3), await second.next()]
            assert {decision.event_id for decision in (done, *held)} == {item.envelope.event_id for item in items}
            acknowledged = next(item for item in items if item.envelope.event_id == done.event_id)
            (first if acknowledged in items[:3] else second).acknowledge(acknowledged)

            async def is_acknowledged() -> bool | None:
                group = (await clients[1].list_consumers()).consumers[0]
                return group.pending == len(held) or None

            await poll(is_acknowledged)
            victim.kill()
            for consumer in (first, second):
                with pytest.raises(GavelError) as broken:
                    await consumer.next()
                assert grpc.StatusCode.UNAVAILABLE == broken.value.code
            async with consume(clients[1]) as other:
                again = await other.take(len(held))
                assert {(decision.event_id, 2) for decision in held} == {(item.envelope.event_id, item.delivery) for item in again}
                other.acknowledge(*again)
                await settled(clients[1])


@pytest.mark.long
async def test_a_suspended_redis_interrupts_nothing(tmp_path: Path) -> None:
    """While Redis is suspended, settlements wait and the stream stays open; afterwards they are done, and new items arrive on it."""
    server = Server(tmp_path / "gavel", options=["--front", ANY_FRONT])
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client)
            pending, done = await approve(client, "parcel/1"), await approve(client, "parcel/2")
            async with consume(client, silence_ms_max=600_000) as consumer:
                items = {item.envelope.event_id: item for item in await consumer.take(2)}
                redis_process_id = server.redis_process_id()
                os.kill(redis_process_id, signal.SIGSTOP)
                try:
                    consumer.acknowledge(items[done.event_id])
                    # This call needs Redis, so it is answered only after the server's timeouts.
                    with pytest.raises(GavelError):
                        await client.list_events(timeout_ms=6_000)
                finally:
                    os.kill(redis_process_id, signal.SIGCONT)
                await wait_until_writable(client)
                new = await approve(client, "parcel/3")
                assert new == (await consumer.next()).envelope
                consumer.acknowledge(items[pending.event_id])

                async def only_the_new_one() -> bool | None:
                    group = (await client.list_consumers()).consumers[0]
                    return (group.pending, group.lag) == (1, 0) or None

                await poll(only_the_new_one)
            await prove(client)


@pytest.mark.long
@pytest.mark.parametrize("server", [0, 1])
async def test_a_consumer_that_reads_nothing(pair: tuple[Server, Server], clients: Clients, bus: str, server: int) -> None:
    """A consumer whose connection takes no bytes loses its stream, although it is alive, and others of its group get what it held."""
    decisions = [await approve(clients[0], f"parcel/{number}") for number in range(3)]
    host, _, port = pair[server].address.rpartition(":")
    stalled = await Http2Connection.open(host, int(port), window_bytes=1)
    try:
        call = stalled.start_call(b"/gavel.v1.WorkService/Consume")
        opening = OpenConsumer(bus=bus, queue=WORK_QUEUE_DECISIONS, group="executors", in_flight_max=1_000)
        stalled.send_data(call, message(ConsumeRequest(open=opening).SerializeToString()), end=False)

        async def holds_all() -> bool | None:
            groups = (await clients[0].list_consumers()).consumers
            return any(group.pending == len(decisions) for group in groups if group.group == "executors") or None

        await poll(holds_all)
        async with consume(clients[1 - server]) as other:
            items = await other.take(len(decisions))
            assert sorted(decision.event_id for decision in decisions) == sorted(item.envelope.event_id for item in items)
            other.acknowledge(*items)
            await settled(clients[0])
        assert not stalled.is_closed  # only the stream has ended
    finally:
        await stalled.close()


def handlers_that_note(subjects: list[str]) -> Handlers:
    """Return handlers that carry out an action by noting its subject."""
    handlers = Handlers()

    @handlers.action(ACTION)
    async def send(context: ExecutionContext) -> HandlerResult:
        subjects.append(context.decision.subject)
        return HandlerResult.success()

    return handlers


@pytest.mark.long
async def test_an_executor_outlasts_a_killed_server(tmp_path: Path) -> None:
    """An executor whose only server is killed and started again carries out each decision once, with no restart of its own."""
    server = Server(tmp_path / "gavel", listen=f"127.0.0.1:{free_port()}", options=["--front", ANY_FRONT])
    subjects: list[str] = []
    handlers = handlers_that_note(subjects)

    with run_servers(server):
        async with GavelClient(server.address) as client, GavelClient(server.address) as other:
            await open_bus(other)
            executor = Executor(client, handlers, producer_id="courier")
            running = asyncio.create_task(executor.run())
            try:
                for name in ("before", "after"):
                    await approve(other, f"parcel/{name}")

                    async def carried_out(subject: str = f"parcel/{name}") -> bool | None:
                        return subject in subjects or None

                    await poll(carried_out)
                    await settled(other)
                    if name == "before":
                        server.kill()
                        await asyncio.to_thread(server.start)
                        await wait_until_writable(other)
            finally:
                executor.stop()
                await running
    assert ["parcel/before", "parcel/after"] == subjects


@pytest.mark.parametrize("outage", [lacking_replicas, asking_password], ids=["NOREPLICAS", "NOAUTH"])
@pytest.mark.parametrize("takes_from_redis", [False, True], ids=["stream", "redis"])
@pytest.mark.long
async def test_an_executor_outlasts_a_redis_that_refuses(tmp_path: Path, outage: Outage, takes_from_redis: bool) -> None:
    """While Redis refuses commands, the server says so, and so does an executor that reads it; then the executor goes on by itself."""
    subjects: list[str] = []
    handlers = handlers_that_note(subjects)

    async with EmbeddedRedis(tmp_path / "redis") as store, running_proxy(store.url) as proxy:
        server = Server(tmp_path / "gavel", redis_url=proxy.url, options=["--front", ANY_FRONT])
        await asyncio.to_thread(server.start)  # the proxy needs the event loop
        try:
            async with server.client() as client, GavelClient(server.address) as other:
                await open_bus(client)
                executor = Executor(other, handlers, redis_url=proxy.url if takes_from_redis else "", producer_id="courier")
                running = asyncio.create_task(executor.run())

                async def carries_out(subject: str) -> bool | None:
                    assert not running.done()
                    return (subject in subjects and not executor.problem) or None

                await approve(client, "parcel/before")
                await poll(partial(carries_out, "parcel/before"))
                async with outage(store, proxy):

                    async def name_it() -> bool | None:
                        status = await client.get_status()
                        of_server = [status.unwritable_reason, *(task.problem for task in status.background_tasks)]
                        # A stream stays open: the server goes on trying for its consumers.
                        return (any(of_server) and bool(executor.problem or not takes_from_redis)) or None

                    await poll(name_it)
                await wait_until_writable(client)
                await approve(client, "parcel/after")
                await poll(partial(carries_out, "parcel/after"))
                await settled(client)
                executor.stop()
                await running
                await prove(client)
        finally:
            server.kill()
    assert ["parcel/before", "parcel/after"] == subjects


@pytest.fixture(params=TRANSPORTS)
async def small(request: pytest.FixtureRequest, redis_url: str, bus: str, tmp_path: Path) -> AsyncIterator[GavelClient]:
    """A client of a server on which a caller may have few streams, on a bus of the test's own."""
    front: FrontSetting = request.param
    server = Server(
        tmp_path / "small", redis_url=redis_url, options=["--front", front], environment={"GAVEL_QUOTA_STREAMS": str(STREAMS_MAX)}
    )
    with run_servers(server):
        async with server.client(bus, tries_max=1) as client:
            await open_bus(client)
            yield client


async def test_streams_of_one_caller_are_limited(small: GavelClient) -> None:
    """A caller with as many streams as its quota gets QUOTA_EXCEEDED for one more, keeps the others, and may open one when one ends."""
    decision = await approve(small, "parcel/1")
    async with AsyncExitStack() as streams:
        consumers = [await streams.enter_async_context(consume(small, f"group-{number}")) for number in range(STREAMS_MAX)]
        with pytest.raises(GavelError) as refused:
            async with consume(small, "one-more"):
                pass
        assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED") == (refused.value.code, refused.value.reason)
        for consumer in consumers:
            assert decision == (await consumer.next()).envelope

    async def opens() -> bool | None:
        try:
            async with consume(small, "one-more") as consumer:
                assert decision == (await consumer.next()).envelope
        except GavelError as error:
            if error.reason != "QUOTA_EXCEEDED":
                raise
            return None
        return True

    await poll(opens)
