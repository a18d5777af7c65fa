"""`kill -9`, a suspended Redis, SIGTERM and SIGHUP under load: every answer is in the log, and everything else can be retried."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, fact_envelope
from gavel_server.log import LogUnavailableError
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.process.clock import GuardedClock

from tests.e2e.in_process import run_sequencer
from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import (
    DEPOT,
    WAIT_SECONDS_MAX,
    Server,
    open_bus,
    poll,
    prove,
    publish_status,
    replay,
    run_servers,
    wait_for_same_head,
    wait_until_writable,
)

BUS = "default"


def server_dies(server: Server) -> None:
    """Kill the server; the kernel sends SIGTERM to its Redis."""
    server.kill()


def redis_dies(server: Server) -> None:
    """Kill Redis; the server restarts it."""
    os.kill(server.redis_process_id(), signal.SIGKILL)


def both_die_redis_first(server: Server) -> None:
    """Kill Redis, then the server, which may notice that Redis is away."""
    os.kill(server.redis_process_id(), signal.SIGKILL)
    server.kill()


def both_die_server_first(server: Server) -> None:
    """Kill the server, then Redis, which may still receive what the server sent."""
    redis_process_id = server.redis_process_id()
    server.running.kill()
    os.kill(redis_process_id, signal.SIGKILL)
    server.kill()


CRASHES: tuple[Callable[[Server], None], ...] = (server_dies, redis_dies, both_die_redis_first, both_die_server_first)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server with an embedded Redis and a fixed address, not started."""
    return Server(tmp_path / "gavel", listen=f"unix:{tmp_path}/gavel.sock")


async def prepared(client: GavelClient) -> dict[str, Envelope]:
    """Deploy the rules; return the facts of some parcels."""
    await open_bus(client)
    return await publish_status(client, [f"parcel/{number}" for number in range(40)])


async def is_consistent(server: Server, client: GavelClient, load: Load) -> None:
    """Assert that every answer is in the log and is repeated unchanged, and that unanswered proposals can be retried."""
    await wait_until_writable(client)
    await load.repeat(client, 20)
    assert {} == load.unanswered
    load.check(await Ledger.read(server.redis_url, BUS))


async def follow(client: GavelClient, followed: list[Envelope]) -> GavelError:
    """Extend `followed` until the subscription ends; return the error that ends it."""
    try:
        async for item in client.subscribe_events(from_sequence_number=len(followed) + 1):
            followed.append(item.envelope)  # noqa: PERF401  # the stream ends with an error
    except GavelError as error:
        return error
    raise AssertionError("the server ended a subscription without saying why")


async def follow_through(client: GavelClient, followed: list[Envelope]) -> None:
    """Follow the log from its start, resuming after each interruption, until cancelled."""
    while True:
        error = await follow(client, followed)
        assert grpc.StatusCode.UNAVAILABLE == error.code, error
        await asyncio.sleep(0.01)


async def has_reached(following: asyncio.Task[None], followed: list[Envelope], number: int) -> bool | None:
    """Whether a follower has seen `count` events; fail if it has ended."""
    assert not following.done(), following.exception()
    return len(followed) >= number or None


async def test_acknowledged_decisions_survive_kill_9(server: Server) -> None:
    """After a kill at any moment, every answered decision is recorded and repeated unchanged, and the log replays.

    A caller that follows the log throughout sees all of it, without gap or duplicate, and no event that is not in it afterwards.
    """
    randomness = random.Random(1)
    events: list[Envelope] = []
    with run_servers(server):
        async with server.client() as client:
            load = Load(randomness, await prepared(client))
        follower = server.client()
        subscription = asyncio.create_task(follow_through(follower, events))
        for crash in randomness.sample(CRASHES, len(CRASHES)):
            async with server.client() as one, server.client() as other:
                load.start((one, other))
                await load.wait_for_answers(randomness.randint(1, 300))
                crash(server)
                await load.stop()
            if server.running.poll() is not None:
                await asyncio.to_thread(server.start)
            async with server.client() as client:
                await is_consistent(server, client, load)
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        ledger = await Ledger.read(server.redis_url, BUS)
        await poll(lambda: has_reached(subscription, events, ledger.head[0]))
        subscription.cancel()
        await follower.close()
        assert ledger.events == events
        verdict = replay(server.redis_url, BUS)
        assert 0 == verdict.returncode, verdict.stderr


@pytest.mark.long
async def test_crash_of_one_server_and_then_redis(tmp_path: Path) -> None:
    """One server continues when the other is killed; after their Redis has died too, both return to one log and one state."""
    async with EmbeddedRedis(tmp_path / "redis") as store:
        first, second = (
            Server(tmp_path / name, redis_url=store.url, listen=f"unix:{tmp_path}/{name}.sock") for name in ("first", "second")
        )
        with run_servers(first, second):
            async with first.client() as one, second.client() as other:
                load = Load(random.Random(4), await prepared(one))
                load.start((one, other))
                await load.wait_for_answers(200)
                first.kill()
                await load.wait_for_answers(400)
                await asyncio.to_thread(first.start)
                load.start((one,))
                await load.wait_for_answers(200)
                assert store.process_id is not None
                os.kill(store.process_id, signal.SIGKILL)
                await store.wait()
                await store.ensure_running()
                await wait_until_writable(one)
                await wait_until_writable(other)
                load.start((one, other))
                await load.wait_for_answers(200)
                await load.stop()
                assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
                await is_consistent(first, other, load)
                statuses = await wait_for_same_head((one, other))
                assert statuses[0].projection_digest == statuses[1].projection_digest
                await prove(one)


@pytest.mark.long
async def test_outcomes_of_a_suspended_redis_are_settled(server: Server) -> None:
    """While Redis is suspended, the outcome of appends is unknown; afterwards each is in the log once or can be retried."""
    with run_servers(server):
        async with server.client() as client, server.client() as other:
            load = Load(random.Random(3), await prepared(client))
            load.start((client, other))
            await load.wait_for_answers(100)
            redis_process_id = server.redis_process_id()
            os.kill(redis_process_id, signal.SIGSTOP)
            try:
                # This call needs Redis, so it is answered only after the server's timeouts for it and for the append before it.
                with pytest.raises(GavelError) as failure:
                    await client.list_events(timeout_ms=6_000)
            finally:
                os.kill(redis_process_id, signal.SIGCONT)
            assert failure.value.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            await load.stop()
            await is_consistent(server, client, load)
            await prove(client)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_signals_drain(server: Server, number: signal.Signals) -> None:
    """Under load, a signal ends every call with a decision or UNAVAILABLE; every answer is committed, and no process remains."""
    with run_servers(server):
        async with server.client() as client, server.client() as other:
            load = Load(random.Random(7), await prepared(client))
            events: list[Envelope] = []
            subscription = asyncio.create_task(follow(client, events))
            load.start((client, other))
            await load.wait_for_answers(200)
            redis_process_id = server.redis_process_id()
            assert 0 == await asyncio.to_thread(server.terminate, number), server.log()
            await load.wait()
            ended = await subscription
        assert [grpc.StatusCode.UNAVAILABLE] * len(load.failures) == [failure.code for failure in load.failures], load.failures
        assert (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN") == (ended.code, ended.reason)
        with pytest.raises(ProcessLookupError):
            os.kill(redis_process_id, 0)
        await asyncio.to_thread(server.start)
        ledger = await Ledger.read(server.redis_url, BUS)
        load.check(ledger)
        assert ledger.events[: len(events)] == events
        async with server.client() as client:
            await is_consistent(server, client, load)
            await prove(client)


async def test_sigterm_of_an_idle_server(server: Server) -> None:
    """A server with only an open subscription exits at once, with status 0."""
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client)
            subscription = asyncio.create_task(follow(client, []))
            assert 0 == await asyncio.to_thread(server.terminate)
            assert grpc.StatusCode.UNAVAILABLE == (await subscription).code


async def refuse_writes(server: Server, refuse: bool) -> None:
    """Make a server's Redis refuse or accept writes."""
    async with redis.asyncio.Redis.from_url(server.redis_url) as connection:
        await connection.config_set("min-replicas-to-write", int(refuse))


@pytest.mark.long
async def test_a_redis_that_refuses_writes(server: Server) -> None:
    """While Redis refuses writes, writes fail and reads succeed; buses that fail to open leave nothing behind; then all recovers."""
    with run_servers(server):
        async with server.client() as client:
            load = Load(random.Random(9), await prepared(client))
            load.start((client,))
            await load.wait_for_answers(100)
            await refuse_writes(server, True)
            await load.wait()
            assert {(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")} == {(failure.code, failure.reason) for failure in load.failures}
            assert (await client.list_events(page_size=1)).envelopes
            fact = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
            opening = (client.publish_event(fact, bus=f"new-{number}") for number in range(10))
            for failure in await asyncio.gather(*opening, return_exceptions=True):
                assert isinstance(failure, GavelError), failure
                assert (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE") == (failure.code, failure.reason), failure
            async with redis.asyncio.Redis.from_url(server.redis_url) as connection:
                assert [] == await connection.keys("gavel:{new-*")
            await refuse_writes(server, False)
            await is_consistent(server, client, load)
            await prove(client)


async def test_a_bus_that_redis_does_not_let_open(server: Server) -> None:
    """Creating a bus fails if Redis refuses writes; it is not retried for ever."""
    with run_servers(server):
        await refuse_writes(server, True)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            with pytest.raises(LogUnavailableError, match="NOREPLICAS"):
                async with run_sequencer(server.redis_url, "new", GuardedClock()):
                    pass
