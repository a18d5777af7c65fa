"""Failovers of Sentinel sets and Redis Clusters under load: nothing acknowledged is lost, or the loss is reported."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import redis.asyncio
import redis.exceptions
from gavel_client import GavelError, fact_envelope
from gavel_rules.redis_keys import log_key

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import DEPOT, Server, open_bus, poll, prove, publish_status, run_servers, wait_until_writable
from tests.support.redis.cluster import RunningCluster, running_cluster
from tests.support.redis.sentinel import sentinel_set
from tests.support.redis.tcp import RedisOnTcp
from tests.support.redis.valkey import valkey_program

pytestmark = pytest.mark.long

BUS = "parcels"
SUBJECTS = [f"parcel/{number}" for number in range(20)]
# What the buses must do in an outage before it counts as survived.
ANSWERS = 40
REPLICATED = ("--min-replicas-to-write", "1")

Result = TypeVar("Result")


async def kill(node: RedisOnTcp) -> None:
    """Kill a Redis."""
    await node.kill()


async def pause(node: RedisOnTcp) -> None:
    """Let a Redis fall silent."""
    node.pause()


async def holder(nodes: list[RedisOnTcp], bus: str) -> str:
    """Return the URL of the node of a cluster that holds a bus now."""
    for node in nodes:
        if node.process.returncode is not None:
            continue
        try:
            async with redis.asyncio.Redis(port=node.port, socket_timeout=1) as client:
                if await client.xlen(log_key(bus)):
                    return node.url
        except redis.exceptions.RedisError:
            continue  # it is silent, or another one holds the bus
    raise AssertionError(f"no node holds {bus}")


@pytest.mark.parametrize("end", [kill, pause])
async def test_sentinel_failover(tmp_path: Path, end: Callable[[RedisOnTcp], Awaitable[None]]) -> None:
    """A primary that dies or falls silent under load is replaced; two servers go on, and nothing that a replica confirmed is lost."""
    async with sentinel_set(tmp_path / "redis", *REPLICATED) as redis_set:
        options = ("--ack", "replicas:1")
        servers = [Server(tmp_path / f"server-{number}", redis_url=redis_set.url, options=options) for number in range(2)]
        with run_servers(*servers):
            async with servers[0].client(BUS, tries_max=1) as client, servers[1].client(BUS, tries_max=1) as other:
                await open_bus(client)
                load = Load(random.Random(1), await publish_status(client, SUBJECTS))
                load.start([client, other], (1, 7))
                await load.wait_for_answers(ANSWERS)
                first = await redis_set.primary()
                await end(first)

                async def is_replaced(first: RedisOnTcp = first) -> bool | None:
                    return await redis_set.primary() is not first or None

                await poll(is_replaced)
                await load.stop()  # agents whose calls failed have ended before
                await wait_until_writable(client)
                await wait_until_writable(other)
                if end is pause:
                    first.proceed()
                await load.repeat(client, ANSWERS)
                load.start([client, other], (1, 7))
                await load.wait_for_answers(ANSWERS)
                await load.stop()
                await load.repeat(other, ANSWERS)
                load.check(await Ledger.read((await redis_set.primary()).url, BUS))
                await prove(client)


@pytest.mark.parametrize("end", [kill, pause])
async def test_cluster_failover(tmp_path: Path, end: Callable[[RedisOnTcp], Awaitable[None]]) -> None:
    """A master that dies or falls silent under load stops its own buses alone, until its replica takes over; nothing is lost."""
    async with running_cluster(tmp_path / "redis", has_replicas=True, program=valkey_program(), settings=REPLICATED) as cluster:
        buses = [cluster.bus_on(index, BUS) for index in range(3)]
        options = ("--ack", "aof:1")
        servers = [Server(tmp_path / f"server-{number}", redis_url=cluster.url, options=options) for number in range(2)]
        with run_servers(*servers):
            loads = await start_loads(servers, buses)
            for load in loads.values():
                await load.wait_for_answers(ANSWERS)
            first = cluster.masters[0]
            await end(first)
            for bus in buses[1:]:
                await loads[bus].wait_for_answers(ANSWERS)
            assert [[], []] == [failures_beside_slow_disks(loads[bus]) for bus in buses[1:]]
            await wait_until_master(cluster.replicas[0])
            if end is pause:
                first.proceed()
            else:
                await first.restart()
            for load in loads.values():
                await load.stop()
            await check_all(servers, cluster, loads)


async def wait_until_master(node: RedisOnTcp) -> None:
    """Return once a replica has taken over."""

    async def is_master() -> bool | None:
        async with redis.asyncio.Redis(port=node.port) as client:
            return (await client.info("replication"))["role"] == "master" or None

    await poll(is_master)


async def until_confirmed(call: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a call until replicas confirm its events; return its result. A replica that copies everything, or whose disk is busy, may take
    longer than a call waits, and a batch is answered with that error for each of its events, which no client repeats.
    """

    async def attempt() -> Result | None:
        try:
            return await call()
        except (GavelError, AssertionError) as error:
            if "LOG_UNAVAILABLE" not in str(error):
                raise
            return None

    return await poll(attempt)


def failures_beside_slow_disks(load: Load) -> list[GavelError]:
    """Return the failed calls of a load, except those whose events a busy disk did not confirm in time."""
    return [failure for failure in load.failures if "replicas wrote them to their disks" not in str(failure)]


async def start_loads(servers: list[Server], buses: list[str]) -> dict[str, Load]:
    """Open buses and start load on each at every server."""
    loads: dict[str, Load] = {}
    for bus in buses:
        clients = [server.client(bus, tries_max=1) for server in servers]
        async with servers[0].client(bus) as patient:
            await until_confirmed(partial(publish_status, patient, SUBJECTS[:1]))
            await open_bus(patient)
            loads[bus] = Load(random.Random(1), await until_confirmed(partial(publish_status, patient, SUBJECTS)))
        loads[bus].start(clients, (1, 7))
    return loads


async def check_all(servers: list[Server], cluster: RunningCluster, loads: dict[str, Load]) -> None:
    """Assert that every answer is in its log, and that the log replays."""
    for bus, load in loads.items():
        async with servers[1].client(bus) as client:
            await wait_until_writable(client)
            await until_confirmed(partial(publish_status, client, SUBJECTS[:1]))
            await load.repeat(client, ANSWERS)
            load.check(await Ledger.read(await holder([*cluster.masters, *cluster.replicas], bus), bus))
            await prove(client)


async def test_failover_that_loses_acknowledged_events(tmp_path: Path) -> None:
    """If a replica without the last acknowledged events takes over, running, restarted and new servers report it and write nothing."""
    async with sentinel_set(tmp_path / "redis") as redis_set:
        server = Server(tmp_path / "server", redis_url=redis_set.url, options=("--accept-volatile",))
        with run_servers(server):
            async with server.client(BUS) as client:
                await open_bus(client)
                for replica in redis_set.nodes[1:]:
                    async with redis.asyncio.Redis(port=replica.port) as admin:
                        # It stays connected and reads nothing more.
                        await admin.execute_command("REPLICAOF", "127.0.0.1", 1)  # type: ignore[no-untyped-call]
                await publish_status(client, SUBJECTS)
                await redis_set.nodes[0].kill()

                async def is_regressed() -> bool | None:
                    try:
                        await publish_status(client, ["parcel/new"])
                    except (GavelError, AssertionError) as error:
                        return True if "has lost acknowledged events" in str(error) else None
                    return None

                await poll(is_regressed)
            await asyncio.to_thread(server.terminate)
            await asyncio.to_thread(server.start)
            new = Server(tmp_path / "new", redis_url=redis_set.url, options=("--accept-volatile",))
            with run_servers(new):
                await refuses_until_the_loss_is_accepted(new, server)


async def test_failover_that_loses_unacknowledged_events(tmp_path: Path) -> None:
    """If the new primary lacks events that no replica confirmed, the servers go on without them, and the caller records them anew."""
    async with sentinel_set(tmp_path / "redis") as redis_set:
        options = ("--ack", "replicas:1", "--accept-volatile")
        servers = [Server(tmp_path / f"server-{number}", redis_url=redis_set.url, options=options) for number in range(2)]
        with run_servers(*servers):
            async with servers[0].client(BUS, tries_max=1) as client, servers[1].client(BUS) as other:
                await open_bus(client)
                await publish_status(client, SUBJECTS)
                last = (await client.get_status()).head_sequence_number
                for replica in redis_set.nodes[1:]:
                    async with redis.asyncio.Redis(port=replica.port) as admin:
                        await admin.execute_command("REPLICAOF", "127.0.0.1", 1)  # type: ignore[no-untyped-call]
                unconfirmed = fact_envelope("parcel/new", DEPOT, key="parcel.status", value="ready")
                with pytest.raises(GavelError, match="replicas"):
                    await client.publish_event(unconfirmed)

                async def has_read_it() -> bool | None:
                    return (await other.get_status()).head_sequence_number > last or None

                await poll(has_read_it)
                await redis_set.nodes[0].kill()
                for one in (client, other):
                    await wait_until_writable(one)
                recorded = await other.publish_event(unconfirmed)
                assert last + 1 == recorded.envelope.sequence_number
                await publish_status(client, SUBJECTS)
                await prove(client)
                await prove(other)


async def refuses_until_the_loss_is_accepted(new: Server, server: Server) -> None:
    """Assert that a server without a checkpoint refuses to write, and goes on by itself once the loss is accepted at the other one."""
    async with new.client(BUS, tries_max=1) as client, server.client(BUS) as other:
        status = await client.get_status()
        assert not status.writable
        assert "another server found" in status.unwritable_reason
        with pytest.raises(GavelError) as refusal:
            await client.publish_event(fact_envelope(SUBJECTS[0], DEPOT, key="parcel.status", value="ready"))
        assert "LOG_REGRESSED" == refusal.value.reason
        status = await other.get_status()
        assert not status.writable
        assert "has lost acknowledged events" in status.unwritable_reason
        accepted = await other.accept_loss(head_sequence_number=status.head_sequence_number, accepted_by="ada", reason="failover")
        assert status.head_sequence_number + 1 == accepted.envelope.sequence_number
        await publish_status(other, SUBJECTS)
        await wait_until_writable(client)
        await publish_status(client, SUBJECTS)
        await prove(client)
