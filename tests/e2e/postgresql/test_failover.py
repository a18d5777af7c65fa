"""Failover to a standby: a synchronous one has everything acknowledged, and the loss of another is detected by checkpoints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from gavel_client import GavelClient, GavelError, fact_envelope

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import DEPOT, PATIENT_MS, Server, open_bus, poll, prove, publish_status, replay, run_servers, wait_until_writable
from tests.support.postgresql.cluster import Cluster, directories, new_cluster, prepare, running

BUS = "default"
PARCELS = [f"parcel/{number}" for number in range(20)]


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A PostgreSQL and its streaming standby."""
    with directories() as directory, new_cluster(directory / "primary") as primary:
        standby = prepare(directory / "standby")
        primary.copy_to(standby)
        with running(standby):
            yield primary, standby


def url_of(*clusters: Cluster) -> str:
    """Return the URL that leads to the primary of several servers."""
    hosts, ports = ",".join(str(cluster.directory) for cluster in clusters), ",".join("5432" for _ in clusters)
    return f"postgresql://gavel_server@/gavel?host={hosts}&port={ports}&target_session_attrs=read-write"


async def has_copied(primary: Cluster, standby: Cluster) -> None:
    """Return once the standby has the events of the primary."""
    statement = "SELECT bus, sequence_number, chain_hash FROM gavel.heads"

    async def is_equal() -> bool | None:
        mine, theirs = await asyncio.to_thread(primary.execute, statement), await asyncio.to_thread(standby.execute, statement)
        return mine == theirs or None

    await poll(is_equal)


async def refuses_to_write(client: GavelClient) -> None:
    """Wait until the bus is not writable because it lost events, and assert that a write is refused for it."""

    async def is_regressed() -> bool | None:
        status = await client.get_status()
        return "has lost acknowledged events" in status.unwritable_reason or None

    await poll(is_regressed)
    with pytest.raises(GavelError) as refusal:
        await client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"), timeout_ms=PATIENT_MS)
    assert (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED") == (refusal.value.code, refusal.value.reason), refusal.value


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_failover_that_lost_events_is_detected(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """A running server, a restarted one and a new one without a checkpoint refuse to write to a promoted standby that lacks events."""
    primary, standby = pair
    url = url_of(primary, standby)
    options = ["--no-front", "--accept-volatile", "--checkpoint", str(tmp_path / "checkpoint.json")]
    server = Server(tmp_path / "server", redis_url=url, options=options)
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client)
            await publish_status(client, PARCELS)
            await has_copied(primary, standby)
            standby.kill()
            lost = await publish_status(client, PARCELS)
            primary.kill()
            await asyncio.to_thread(standby.start)
            await asyncio.to_thread(standby.promote)
            await refuses_to_write(client)
        before = await Ledger.read(standby.url, BUS)
        assert before.head[0] < min(event.sequence_number for event in lost.values())
        server.terminate()
        await asyncio.to_thread(server.start)
        async with server.client() as client:
            await refuses_to_write(client)
    new = Server(tmp_path / "new", redis_url=url, options=options[:2])  # without a checkpoint
    with run_servers(new):
        async with new.client() as client:
            await refuses_to_write(client)
    assert before.events == (await Ledger.read(standby.url, BUS)).events
    assert 0 == replay(standby.url, BUS).returncode


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_synchronous_standby_has_everything(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """With a synchronous standby, two servers under load go on after its promotion, and every answer is in its log."""
    primary, standby = pair
    primary.set("synchronous_standby_names", "ANY 1 (*)")
    url = url_of(primary, standby)
    servers = [Server(tmp_path / name, redis_url=url, options=["--no-front"]) for name in ("first", "second")]
    with run_servers(*servers):
        async with servers[0].client() as one, servers[1].client() as other:
            await open_bus(one)
            load = Load(random.Random(5), await publish_status(one, PARCELS))
            load.start((one, other))
            await load.wait_for_answers(100)
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(standby.promote)
            await load.stop()
            await wait_until_writable(one)
            await wait_until_writable(other)
            load.start((one, other))
            await load.wait_for_answers(100)
            await load.stop()
            await load.repeat(one, 20)
            assert {} == load.unanswered
            load.check(await Ledger.read(standby.url, BUS))
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        assert all("log.promoted" in server.log() for server in servers)
    assert 0 == replay(standby.url, BUS).returncode


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_failover_that_loses_unconfirmed_events(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """If the promoted standby lacks an event that it never confirmed, the server goes on without it, and the caller records it anew."""
    primary, standby = pair
    primary.set("synchronous_standby_names", "ANY 1 (*)")
    server = Server(tmp_path / "server", redis_url=url_of(primary, standby), options=["--no-front", "--accept-volatile"])
    with run_servers(server):
        async with server.client(tries_max=1) as client:
            await open_bus(client)
            await publish_status(client, PARCELS)
            last = (await client.get_status()).head_sequence_number
            await has_copied(primary, standby)
            standby.kill()
            unconfirmed = fact_envelope("parcel/new", DEPOT, key="parcel.status", value="ready")
            with pytest.raises(GavelError, match="standbys"):
                await client.publish_event(unconfirmed)
            assert last < (await client.get_status()).head_sequence_number
            primary.kill()
            await asyncio.to_thread(standby.start)
            await asyncio.to_thread(standby.promote)
            await wait_until_writable(client)
            # Commits of the new primary wait for no standby. That confirms no earlier event.
            recorded = await client.publish_event(unconfirmed, timeout_ms=PATIENT_MS)
            assert last + 1 == recorded.envelope.sequence_number
            await prove(client)
        assert "log.unconfirmed_events_lost" in server.log()
    assert 0 == replay(standby.url, BUS).returncode
