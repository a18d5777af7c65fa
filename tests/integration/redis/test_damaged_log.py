"""A log in Redis that has lost or changed events is reported, and nothing is appended to it."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_server.log import (
    IdEntry,
    LogCorruptError,
    LogUnavailableError,
    empty_head,
)
from gavel_server.log.entries import Work
from gavel_server.log.redis.log import RedisLog

from tests.support.entries import DAY_MS, NOW_MS, entries_after, head_of, records_of


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (["XADD {log} 3-0 e foreign h hash"], "the last id of the stream is 3-0"),
        (["XDEL {log} 1-0"], "event 1 is missing"),
        (["XDEL {log} 2-0"], "event 2 is missing"),
        (["HSET {head} count 1"], "the head counts 1 entries, the stream holds 2"),
        (["DEL {log}"], "the last id of the stream is 0-0"),
        (["DEL {head}"], "is 0 .* the last id of the stream is 2-0"),
        (["HSET {head} sequence_number 10"], "is 10 .* the last id of the stream is 2-0"),
        (["HSET {head} chain_hash 01234567890123456789012345678901"], "the last entry of the stream has chain hash"),
        (["DEL {log}", "SET {log} text"], "WRONGTYPE"),
        (["DEL {head}", "SET {head} text"], "is not a hash"),
        (["HSET {head} sequence_number two"], "sequence_number is b'two', not a number"),
        (["HSET {head} count two"], "count is b'two', not a number"),
        (["HSET {head} fence two"], "fence is b'two', not a number"),
        (["HSET {head} sequence_number -2"], "sequence_number is b'-2', not a number"),
    ],
)
async def test_inconsistent_head_and_stream_are_an_error(
    log: RedisLog, client: Any, redis_url: str, bus: str, damage: list[str], message: str
) -> None:
    """Opening a log whose head and stream disagree is an error that names both, or the first event that is missing."""
    await log.append(empty_head(bus), entries_after(empty_head(bus), 2), NOW_MS, [])
    prefix = f"gavel:{{{bus}}}:"
    for command in damage:
        await client.execute_command(*command.format(log=f"{prefix}log", head=f"{prefix}head").split())
    with pytest.raises(LogCorruptError, match=message):
        await RedisLog.connect(redis_url, bus)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("XDEL {prefix}log 1-0", "counts 2 entries, the stream holds 1"),
        ("DEL {prefix}log", "counts 2 entries, the stream holds 0"),
        ("HSET {prefix}head sequence_number two", "sequence_number is b'two', not a number"),
        ("HSET {prefix}head count two", "the count in the head is not a number"),
        ("HSET {prefix}head fence two", "fence is b'two', not a number"),
        ("XADD {prefix}log 9-0 e foreign h hash", "counts 2 entries, the stream holds 3"),
        ("SET {prefix}ids:20000 text", "ids:20000 is a string, not a hash"),
    ],
)
async def test_append_to_damaged_log_writes_nothing(log: RedisLog, client: Any, bus: str, damage: str, message: str) -> None:
    """An append to a damaged log writes nothing."""
    prefix = f"gavel:{{{bus}}}:"
    first = entries_after(empty_head(bus), 2)
    await log.append(empty_head(bus), first, NOW_MS - DAY_MS, [])
    await client.execute_command(*damage.format(prefix=prefix).split())

    async def everything() -> list[bytes]:
        return [await client.dump(key) for key in sorted(await client.keys(f"{prefix}*"))]

    before = await everything()
    second = entries_after(head_of(first), 2, works=["decisions", "executions"])
    with pytest.raises(LogCorruptError, match=message):
        await log.append(head_of(first), second, NOW_MS, [])
    assert before == await everything()


@pytest.mark.parametrize(
    "damage",
    ["XADD {queue} 9-0 e foreign h hash", "XADD {queue} 18446744073709551615-18446744073709551615 e x h y", "SET {queue} text"],
)
@pytest.mark.parametrize("work", ["decisions", "executions"])
async def test_damaged_work_queue_does_not_stop_appends(log: RedisLog, client: Any, bus: str, work: Work, damage: str) -> None:
    """A work queue that refuses entries is begun anew by the next append, which is not lost, and consumers find all later entries."""
    queue = f"gavel:{{{bus}}}:work:{work}"
    first = entries_after(empty_head(bus), 1, works=[work])
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.delete(queue)
    await client.execute_command(*damage.format(queue=queue).split())
    await log.work.groups()
    second = entries_after(head_of(first), 2, works=[work])
    await log.append(head_of(first), second, NOW_MS, [])
    assert head_of(second) == await log.head()
    assert records_of(first + second) == await log.read(1, 10)
    assert [b"2-0", b"3-0"] == [entry_id for entry_id, _ in await client.xrange(queue)]
    await log.ensure_groups()
    assert {(work, 2)} <= {(group.queue, group.lag) for group in await log.work.groups()}


async def test_missing_event_is_an_error_although_the_count_fits(log: RedisLog, client: Any, redis_url: str, bus: str) -> None:
    """An event that was removed from the middle is noticed at the head, also if the count was changed to fit."""
    await log.append(empty_head(bus), entries_after(empty_head(bus), 4), NOW_MS, [])
    await client.xdel(f"gavel:{{{bus}}}:log", "3-0")
    await client.hset(f"gavel:{{{bus}}}:head", "count", "3")
    with pytest.raises(LogCorruptError, match=r"holds 3 entries from 1 to 4: some are missing"):
        await log.head()
    with pytest.raises(LogCorruptError, match="event 3 is missing from"):
        await RedisLog.connect(redis_url, bus)


async def test_index_entry_that_is_no_number(log: RedisLog, client: Any, bus: str) -> None:
    """An entry of the index that the server cannot have written names no event."""
    await client.hset(f"gavel:{{{bus}}}:ids:{NOW_MS // DAY_MS}", "event-1", "one")
    assert {"event-1": IdEntry(0, 0)} == await log.find(["event-1"], NOW_MS)


async def test_reading_across_a_missing_event_is_an_error(log: RedisLog, client: Any, bus: str) -> None:
    """Reading across a missing event is an error that names it; a log trimmed at its start is valid."""
    entries = entries_after(empty_head(bus), 6)
    await log.append(empty_head(bus), entries, NOW_MS, [])
    await client.xtrim(f"gavel:{{{bus}}}:log", minid="3-0", approximate=False)
    assert records_of(entries[2:]) == await log.read(1, 10)
    await client.xdel(f"gavel:{{{bus}}}:log", "5-0")
    with pytest.raises(LogCorruptError, match=r"event 5 is missing"):
        await log.read(1, 10)


async def test_foreign_entry_is_an_error(log: RedisLog, client: Any, bus: str) -> None:
    """An entry that no append wrote is an error that names it."""
    await client.xadd(f"gavel:{{{bus}}}:log", {"e": "envelope"}, id="1-0")
    with pytest.raises(LogCorruptError, match=r"entry b'1-0' .* is not <number>-0 with fields e and h"):
        await log.read(1, 10)


async def test_log_of_another_format_is_refused(log: RedisLog, client: Any, redis_url: str, bus: str) -> None:
    """A log of another format version is neither read nor written."""
    first = entries_after(empty_head(bus), 1)
    await log.append(empty_head(bus), first, NOW_MS, [])
    await client.hset(f"gavel:{{{bus}}}:head", "format_version", "2")
    with pytest.raises(LogUnavailableError, match=r"has format 2, but this build knows 1"):
        await log.append(head_of(first), entries_after(head_of(first), 1), NOW_MS, [])
    with pytest.raises(LogUnavailableError, match=r"has format 2"):
        await RedisLog.connect(redis_url, bus)
