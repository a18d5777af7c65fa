"""A notary signs what the servers' `--ack` confirms, on each store: an event that no copy has yet may be lost, and is not signed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, fact_envelope
from gavel_server.proofs.verifier import parse_checkpoint

from tests.e2e.cli.programs import gavel
from tests.e2e.proofs.conftest import make_key
from tests.e2e.world import DEPOT, Server, poll, run_servers, wait_until_writable
from tests.support.postgresql.cluster import directories, new_cluster, prepare, running
from tests.support.redis.cluster import running_cluster
from tests.support.redis.tcp import replicated_redis
from tests.support.redis.valkey import valkey_program


class Store(NamedTuple):
    """A store whose primary has one copy, which a test can pause."""

    url: str
    pause: Callable[[], None]
    proceed: Callable[[], None]


@asynccontextmanager
async def redis_store(folder: Path) -> AsyncIterator[Store]:
    """A Redis and its replica."""
    async with replicated_redis(folder) as (primary, replica):
        yield Store(primary.url, replica.pause, replica.proceed)


@asynccontextmanager
async def cluster_store(folder: Path) -> AsyncIterator[Store]:
    """A Redis Cluster of one master and its replica."""
    async with running_cluster(folder, 1, has_replicas=True, program=valkey_program()) as cluster:
        (replica,) = cluster.replicas
        yield Store(cluster.url, replica.pause, replica.proceed)


@asynccontextmanager
async def postgresql_store(folder: Path) -> AsyncIterator[Store]:
    """A PostgreSQL and its synchronous standby."""
    with directories() as directory, new_cluster(directory / "primary") as primary:
        standby = prepare(directory / "standby")
        primary.copy_to(standby)
        with running(standby):
            primary.set("synchronous_standby_names", "ANY 1 (*)")
            yield Store(primary.url, lambda: standby.signal(signal.SIGSTOP), lambda: standby.signal(signal.SIGCONT))


class NotaryRun(NamedTuple):
    """A notary of the default bus."""

    server: Server
    url: str
    key: Path
    state: Path

    async def sign(self) -> subprocess.CompletedProcess[str]:
        """Run it once."""
        options = ("--once", "--key", self.key, "--state", self.state, "--log", self.url)
        return await asyncio.to_thread(gavel, "notary", *options, server=self.server)

    def signed(self) -> int:
        """Return how many events its checkpoint has."""
        return parse_checkpoint((self.state / "checkpoint").read_text(encoding="utf-8")).size


async def publish_until_confirmed(client: GavelClient, fact: Envelope) -> int:
    """Publish an event until copies confirm it; return its number."""

    async def confirmed() -> int | None:
        try:
            return (await client.publish_event(fact)).envelope.sequence_number
        except GavelError:
            return None

    return await poll(confirmed)


def new_fact(value: str) -> Envelope:
    """Return a fact about a parcel."""
    return fact_envelope("parcel/1", DEPOT, key="parcel.status", value=value)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("run_store", [redis_store, cluster_store, postgresql_store])
async def test_an_unconfirmed_event_is_not_signed(run_store: Callable[[Path], AsyncIterator[Store]], tmp_path: Path) -> None:
    """While the only copy is paused, an event that is in the log is not signed; once the copy goes on and confirms it, it is."""
    async with AsyncExitStack() as stack:
        store: Store = await stack.enter_async_context(run_store(tmp_path / "store"))  # type: ignore[arg-type]
        server = Server(tmp_path / "server", redis_url=store.url, options=("--ack", "replicas:1", "--accept-volatile"))
        stack.enter_context(run_servers(server))
        client = await stack.enter_async_context(server.client(tries_max=1))
        notary = NotaryRun(server, store.url, make_key(tmp_path)[0], tmp_path / "notary")
        confirmed = await publish_until_confirmed(client, new_fact("packed"))
        signed = await notary.sign()
        assert (f"signed and published {confirmed} events of gavel/default\n", "") == (signed.stdout, signed.stderr)

        store.pause()
        fact = new_fact("ready")
        with pytest.raises(GavelError, match="LOG_UNAVAILABLE"):
            await client.publish_event(fact)
        assert confirmed + 1 == (await client.get_status()).head_sequence_number
        refused = await notary.sign()
        assert (1, "", True) == (refused.returncode, refused.stdout, f"events up to {confirmed + 1} are in the log, but" in refused.stderr)
        assert confirmed == notary.signed()

        store.proceed()
        assert confirmed + 1 == await publish_until_confirmed(client, fact)
        signed = await notary.sign()
        assert (f"signed and published {confirmed + 1} events of gavel/default\n", "") == (signed.stdout, signed.stderr)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_notary_goes_on_after_an_unconfirmed_event_is_lost(tmp_path: Path) -> None:
    """A failover that loses an event that no replica had, and that the notary refused to sign, does not end the notary's key."""
    async with replicated_redis(tmp_path / "redis") as (primary, replica):
        server = Server(tmp_path / "server", redis_url=primary.url, options=("--ack", "replicas:1", "--accept-volatile"))
        with run_servers(server):
            async with server.client(tries_max=1) as client:
                notary = NotaryRun(server, primary.url, make_key(tmp_path)[0], tmp_path / "notary")
                confirmed = await publish_until_confirmed(client, new_fact("packed"))
                assert 0 == (await notary.sign()).returncode
                await replica.stand_alone()
                with pytest.raises(GavelError, match="LOG_UNAVAILABLE"):
                    await client.publish_event(new_fact("lost"))
                assert 1 == (await notary.sign()).returncode
                await primary.take_contents_of(replica)
                await replica.follow(primary)
                await wait_until_writable(client)
                assert confirmed + 1 == await publish_until_confirmed(client, new_fact("ready"))
                signed = await notary.sign()
                assert (f"signed and published {confirmed + 1} events of gavel/default\n", "") == (signed.stdout, signed.stderr)
