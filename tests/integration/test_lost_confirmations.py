"""What a server knows of confirmations after a real Redis has lost events, or has confirmed more than the server remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.bus.acknowledged_head import UNCONFIRMED_HEADS_MAX, AcknowledgedHead
from gavel_server.log import Entry, Head, chain, empty_head
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.protocol import NotReplicatedError
from gavel_server.log.redis.log import RedisLog

from tests.support.entries import NOW_MS, entries_after, head_of
from tests.support.redis.tcp import RedisOnTcp, redis_on_tcp, replicated_redis

SHORT_MS = 500

pytestmark = pytest.mark.usefixtures("redis_program")


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[RedisOnTcp, RedisOnTcp]]:
    """A primary and its replica."""
    async with replicated_redis(tmp_path) as pair:
        yield pair


async def connect(primary: RedisOnTcp, bus: str, replicas: int = 1) -> RedisLog:
    """Return the log as a server has it that waits for replicas."""
    return await RedisLog.connect(primary.url, bus, acknowledgement=Acknowledgement(replicas), timeout_ms=SHORT_MS)


async def confirm(log: RedisLog, head: Head) -> None:
    """Wait until the replica confirms an event, however slow it is."""
    while not log.is_confirmed(head.sequence_number):
        try:
            await log.confirm(head)
        except NotReplicatedError:
            continue


async def append(log: RedisLog, expected: Head, entries: list[Entry]) -> Head:
    """Append entries, confirmed or not; return the head."""
    with suppress(NotReplicatedError):
        await log.append(expected, entries, NOW_MS, [])
    return head_of(entries)


async def test_a_lost_confirmation_is_no_confirmation_of_other_events(
    servers: tuple[RedisOnTcp, RedisOnTcp], tmp_path: Path, bus: str
) -> None:
    """After a failover lost confirmed events, the events in their place count as unconfirmed until the replica has them."""
    primary, replica = servers
    log = await connect(primary, bus)
    first = await append(log, empty_head(bus), entries_after(empty_head(bus), 1))
    async with redis_on_tcp(tmp_path / "older") as older:
        await older.take_contents_of(primary)
        last = await append(log, first, entries_after(first, 2))
        await replica.follow(primary)
        await confirm(log, last)
        await primary.take_contents_of(older)
    assert first == await log.head()
    await replica.follow(primary)
    replica.pause()
    other = await connect(primary, bus, replicas=0)
    last = await append(other, first, entries_after(first, 2, "other"))
    assert (last, False, False) == (await log.head(), log.is_confirmed(2), log.is_confirmed(3))
    with pytest.raises(NotReplicatedError):
        await log.confirm(last)
    replica.proceed()
    await confirm(log, last)
    await other.close()
    await log.close()


async def test_forgotten_heads_count_as_acknowledged(servers: tuple[RedisOnTcp, RedisOnTcp], bus: str) -> None:
    """If more events waited for the replica than a server remembers, it takes no log for one that has all acknowledged events."""
    primary, replica = servers
    log = await connect(primary, bus)
    content = Envelope(event_id="first").SerializeToString()
    opening = Entry(1, content, chain(empty_head(bus).chain_hash, content), "first", "")
    entries = [opening, *entries_after(head_of([opening]), UNCONFIRMED_HEADS_MAX + 1)]
    replica.pause()
    await append(log, empty_head(bus), entries)
    acknowledged = AcknowledgedHead(log, None)
    for entry in entries:
        acknowledged.add(head_of([entry]))
    assert await acknowledged.is_in_log("first")  # nothing is acknowledged yet
    replica.proceed()
    await confirm(log, head_of(entries[:2]))  # the server remembers the heads from the third event on
    assert None is acknowledged.last
    assert not await acknowledged.is_in_log("first")
    await log.close()
