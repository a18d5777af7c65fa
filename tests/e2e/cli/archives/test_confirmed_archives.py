"""`gavel archive` and `gavel backup` copy no event that the servers' `--ack` does not confirm: a failover may lose it."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.archive.segments import SEGMENT_EVENTS
from gavel_server.log import Entry, chain
from gavel_server.log.redis.log import RedisLog

from tests.e2e.cli.programs import gavel
from tests.support.entries import head_of
from tests.support.redis.tcp import replicated_redis

BATCH = 500


async def fill(url: str) -> int:
    """Write more events than a segment has to the default bus; return how many."""
    log = await RedisLog.connect(url, "default")
    head = await log.head()
    while head.sequence_number <= SEGMENT_EVENTS:
        entries = []
        first, chain_hash = head.sequence_number + 1, head.chain_hash
        for number in range(first, first + BATCH):
            content = Envelope(sequence_number=number, event_id=f"event-{number}", bus="default").SerializeToString()
            chain_hash = chain(chain_hash, content)
            entries.append(Entry(number, content, chain_hash, f"event-{number}", ""))
        await log.append(head, entries, await log.time_ms(), ())
        head = head_of(entries)
    await log.close()
    return head.sequence_number


def copies(archive: Path) -> list[Path]:
    """Return the manifests of an archive."""
    return [*archive.rglob("*.json")]


@pytest.mark.long
async def test_events_that_no_replica_has_are_not_copied(tmp_path: Path) -> None:
    """While the replica lacks events, both commands refuse to copy them, also if nobody says what the servers wait for; later they do."""

    async def run(command: str, *options: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(gavel, command, "--to", tmp_path / command, "--log", primary.url, *options)

    async with replicated_redis(tmp_path / "redis") as (primary, replica):
        replica.pause()
        events = await fill(primary.url)
        for command in ("archive", "backup"):
            unknown = await run(command)
            assert (2, "", True) == (unknown.returncode, unknown.stdout, "has 1 replica(s)" in unknown.stderr), unknown
            unconfirmed = await run(command, "--ack", "replicas:1")
            assert (1, "", True) == (unconfirmed.returncode, unconfirmed.stdout, "only 0 of 1 replicas confirmed" in unconfirmed.stderr)
            assert [] == copies(tmp_path / command)
        replica.proceed()
        archived = await run("archive", "--ack", "replicas:1")
        assert (0, f"archived 1 segments; the archive ends with event {SEGMENT_EVENTS}\n") == (archived.returncode, archived.stdout)
        backed_up = await run("backup", "--ack", "replicas:1")
        assert (0, True) == (backed_up.returncode, backed_up.stdout.startswith(f"backed up {events} events of bus default"))


def test_malformed_ack(tmp_path: Path) -> None:
    """A setting that is not one of `--ack` is refused."""
    result = gavel("archive", "--to", tmp_path, "--data", tmp_path, "--ack", "all")
    assert (2, True) == (result.returncode, result.stderr.startswith("gavel: --ack: 'all' is not a number of replicas; use replicas:N"))
