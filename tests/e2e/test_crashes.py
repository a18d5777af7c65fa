"""`kill -9`, a suspended Redis and SIGTERM, all under load: what was answered stays, and what was not can be asked for again."""

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
from gavel_client import GavelClient, GavelError
from gavel_server.clock import GuardedClock
from gavel_server.embedded import EmbeddedRedis
from gavel_server.log import LogUnavailableError

from tests.e2e.in_process import sequencer_on
from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import WAIT_SECONDS_MAX, Server, caught_up, open_bus, prove, publish_status, replay, serving, until, writable

BUS = "default"


def server_dies(server: Server) -> None:
    """The kernel ends its Redis with it, gently."""
    server.kill()


def redis_dies(server: Server) -> None:
    """The server goes on, and starts it again."""
    os.kill(server.redis_process_id(), signal.SIGKILL)


def both_die_redis_first(server: Server) -> None:
    """The server may see for a moment that Redis is away."""
    os.kill(server.redis_process_id(), signal.SIGKILL)
    server.kill()


def both_die_server_first(server: Server) -> None:
    """Redis may still take in what the server had sent."""
    redis_process_id = server.redis_process_id()
    server.running.kill()
    os.kill(redis_process_id, signal.SIGKILL)
    server.kill()


CRASHES: tuple[Callable[[Server], None], ...] = (server_dies, redis_dies, both_die_redis_first, both_die_server_first)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server with its embedded Redis, not started; its address outlives it."""
    return Server(tmp_path / "gavel", listen=f"unix:{tmp_path}/gavel.sock")


async def prepared(client: GavelClient) -> dict[str, Envelope]:
    """Open the bus and return the facts of some parcels."""
    await open_bus(client)
    return await publish_status(client, [f"parcel/{number}" for number in range(40)])


async def is_consistent(server: Server, client: GavelClient, load: Load) -> None:
    """Assert that everything heard is in the log and comes back the same, and that the rest can be had."""
    await writable(client)
    await load.repeat(client, 20)
    assert {} == load.unheard
    load.check(await Ledger.read(server.redis_url, BUS))


async def follow(client: GavelClient, followed: list[Envelope]) -> GavelError:
    """Follow the log from where `followed` ends until the subscription ends; return why it does."""
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


async def has_come_to(following: asyncio.Task[None], followed: list[Envelope], number: int) -> bool | None:
    """Return whether a follower has seen so many events; fail if it has given up."""
    assert not following.done(), following.exception()
    return len(followed) >= number or None


async def test_acknowledged_decisions_survive_kill_9(server: Server) -> None:
    """Whatever is killed at whatever moment, every answered decision is there and comes back the same, and the log replays.

    Who follows the log all the while sees it whole, without gap, duplicate, or anything that is not in it afterwards.
    """
    randomness = random.Random(1)
    followed: list[Envelope] = []
    with serving(server):
        async with server.client() as client:
            load = Load(randomness, await prepared(client))
        follower = server.client()
        following = asyncio.create_task(follow_through(follower, followed))
        for crash in randomness.sample(CRASHES, len(CRASHES)):
            async with server.client() as one, server.client() as other:
                load.start((one, other))
                await load.hears(randomness.randint(1, 300))
                crash(server)
                await load.stop()
            if server.running.poll() is not None:
                await asyncio.to_thread(server.start)
            async with server.client() as client:
                await is_consistent(server, client, load)
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        ledger = await Ledger.read(server.redis_url, BUS)
        await until(lambda: has_come_to(following, followed, ledger.head[0]))
        following.cancel()
        await follower.close()
        assert ledger.events == followed
        proved = replay(server.redis_url, BUS)
        assert 0 == proved.returncode, proved.stderr


async def test_one_of_two_servers_dies_and_then_redis(tmp_path: Path) -> None:
    """The other goes on without the dead one; both come back after their Redis has died; they end with one log and one state."""
    async with EmbeddedRedis(tmp_path / "redis") as store:
        first, second = (
            Server(tmp_path / name, redis_url=store.url, listen=f"unix:{tmp_path}/{name}.sock") for name in ("first", "second")
        )
        with serving(first, second):
            async with first.client() as one, second.client() as other:
                load = Load(random.Random(4), await prepared(one))
                load.start((one, other))
                await load.hears(200)
                first.kill()
                await load.hears(400)
                await asyncio.to_thread(first.start)
                load.start((one,))
                await load.hears(200)
                assert store.process_id is not None
                os.kill(store.process_id, signal.SIGKILL)
                await store.wait()
                await store.ensure_running()
                await writable(one)
                await writable(other)
                load.start((one, other))
                await load.hears(200)
                await load.stop()
                assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
                await is_consistent(first, other, load)
                statuses = await caught_up((one, other))
                assert statuses[0].projection_digest == statuses[1].projection_digest
                await prove(one)


async def test_a_suspended_redis_leaves_no_doubt(server: Server) -> None:
    """While Redis stands still, appends are of unknown outcome; once it goes on, each is in the log once or can be repeated."""
    with serving(server):
        async with server.client() as client, server.client() as other:
            load = Load(random.Random(3), await prepared(client))
            load.start((client, other))
            await load.hears(100)
            redis_process_id = server.redis_process_id()
            os.kill(redis_process_id, signal.SIGSTOP)
            try:
                # It needs Redis and is answered only when the server has lost its patience, with this as with the append before it.
                with pytest.raises(GavelError) as waiting:
                    await client.list_events(timeout_ms=6_000)
            finally:
                os.kill(redis_process_id, signal.SIGCONT)
            assert waiting.value.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            await load.stop()
            await is_consistent(server, client, load)
            await prove(client)


async def test_sigterm_drains(server: Server) -> None:
    """Under load, SIGTERM ends every call with a decision or UNAVAILABLE, commits what was answered, and leaves no process behind."""
    with serving(server):
        async with server.client() as client, server.client() as other:
            load = Load(random.Random(7), await prepared(client))
            followed: list[Envelope] = []
            following = asyncio.create_task(follow(client, followed))
            load.start((client, other))
            await load.hears(200)
            redis_process_id = server.redis_process_id()
            assert 0 == await asyncio.to_thread(server.terminate), server.log()
            await load.ended()
            ended = await following
        assert [grpc.StatusCode.UNAVAILABLE] * len(load.failures) == [failure.code for failure in load.failures], load.failures
        assert (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN") == (ended.code, ended.reason)
        with pytest.raises(ProcessLookupError):
            os.kill(redis_process_id, 0)
        await asyncio.to_thread(server.start)
        ledger = await Ledger.read(server.redis_url, BUS)
        load.check(ledger)
        assert ledger.events[: len(followed)] == followed
        async with server.client() as client:
            await is_consistent(server, client, load)
            await prove(client)


async def test_sigterm_of_an_idle_server(server: Server) -> None:
    """A server with nothing to do but an open subscription ends at once and well."""
    with serving(server):
        async with server.client() as client:
            await open_bus(client)
            following = asyncio.create_task(follow(client, []))
            assert 0 == await asyncio.to_thread(server.terminate)
            assert grpc.StatusCode.UNAVAILABLE == (await following).code


async def refuse_writes(server: Server, refuse: bool) -> int:
    """Let a server's Redis refuse writes, or take them again; return how many connections it has."""
    async with redis.asyncio.Redis.from_url(server.redis_url) as connection:
        await connection.config_set("min-replicas-to-write", int(refuse))
        return len(await connection.client_list())


async def test_a_redis_that_refuses_writes(server: Server) -> None:
    """While Redis takes no writes, callers hear so and reads go on, buses that cannot be opened leave nothing behind, and it heals."""
    with serving(server):
        async with server.client() as client:
            load = Load(random.Random(9), await prepared(client))
            load.start((client,))
            await load.hears(100)
            await refuse_writes(server, True)
            await load.ended()
            assert {(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")} == {(failure.code, failure.reason) for failure in load.failures}
            assert (await client.list_events(page_size=1)).envelopes
            connections = await refuse_writes(server, True)
            opening = (client.get_projection("parcel/1", bus=f"new-{number}") for number in range(10))
            for failure in await asyncio.gather(*opening, return_exceptions=True):
                assert isinstance(failure, GavelError), failure
                assert (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE") == (failure.code, failure.reason), failure

            async def nothing_left() -> bool | None:
                return await refuse_writes(server, True) <= connections or None

            await until(nothing_left)
            await refuse_writes(server, False)
            await is_consistent(server, client, load)
            await prove(client)


async def test_a_bus_that_redis_does_not_let_open(server: Server) -> None:
    """When Redis takes no writes at the moment when a bus would be opened, opening it fails; it does not go on for ever."""
    with serving(server):
        await refuse_writes(server, True)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            with pytest.raises(LogUnavailableError, match="NOREPLICAS"):
                async with sequencer_on(server.redis_url, "new", GuardedClock()):
                    pass
