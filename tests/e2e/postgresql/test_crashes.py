"""`kill -9` of servers and of PostgreSQL under load: every answer is in the log once, and the log is proved."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from gavel_client import GavelClient

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import Server, open_bus, publish_status, replay, run_servers, wait_for_same_head, wait_until_writable
from tests.support.postgresql.cluster import Cluster, directories, new_cluster

BUS = "default"
PARCELS = [f"parcel/{number}" for number in range(40)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL of the test's own."""
    with directories() as directory, new_cluster(directory / "primary") as cluster:
        yield cluster


async def has_all_answers(cluster: Cluster, client: GavelClient, load: Load) -> None:
    """Assert that every answer is in the log and is repeated unchanged, and that unanswered proposals can be retried."""
    await wait_until_writable(client)
    await load.repeat(client, 20)
    assert {} == load.unanswered
    load.check(await Ledger.read(cluster.url, BUS))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_acknowledged_decisions_survive_kill_9(cluster: Cluster, tmp_path: Path) -> None:
    """After a kill of one of two servers, of PostgreSQL or of all, every answered decision is recorded once, and the log replays."""
    servers = [
        Server(tmp_path / name, redis_url=cluster.url, listen=f"unix:{tmp_path}/{name}.sock", options=["--no-front"])
        for name in ("first", "second")
    ]
    randomness = random.Random(1)
    with run_servers(*servers):
        async with servers[0].client() as client:
            await open_bus(client)
            load = Load(randomness, await publish_status(client, PARCELS))
        for victim in randomness.sample(["server", "postgresql", "all", "server", "postgresql", "all"], 6):
            async with servers[0].client() as one, servers[1].client() as other:
                load.start((one, other))
                await load.wait_for_answers(randomness.randint(1, 200))
                if victim != "server":
                    await asyncio.to_thread(cluster.kill)
                for server in {"server": servers[:1], "postgresql": [], "all": servers}[victim]:
                    server.kill()
                if victim != "server":
                    await asyncio.to_thread(cluster.start)
                await load.stop()
            for server in servers:
                if server.running.poll() is not None:
                    await asyncio.to_thread(server.start)
            async with servers[0].client() as one, servers[1].client() as other:
                await wait_until_writable(other)
                await has_all_answers(cluster, one, load)
                statuses = await wait_for_same_head((one, other))
                assert statuses[0].projection_digest == statuses[1].projection_digest
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        verdict = replay(cluster.url, BUS)
        assert 0 == verdict.returncode, verdict.stderr


@pytest.mark.long
async def test_a_server_follows_a_postgresql_that_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """While PostgreSQL is down, writes are refused with the reason; after its return the server takes them again without a restart."""
    server = Server(tmp_path / "server", redis_url=cluster.url, options=["--no-front"])
    with run_servers(server):
        async with server.client(tries_max=1) as client:
            await open_bus(client)
            load = Load(random.Random(3), await publish_status(client, PARCELS))
            await asyncio.to_thread(cluster.kill)
            load.start((client,))
            await load.wait()
            assert {(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")} == {(failure.code, failure.reason) for failure in load.failures}
            await asyncio.to_thread(cluster.start)
            await has_all_answers(cluster, client, load)
