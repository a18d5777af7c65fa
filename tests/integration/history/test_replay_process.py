"""Replays in processes of their own, on a real Redis."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.redis_keys import log_key
from gavel_rules.replay import DamagedError
from gavel_server.history.replay import ReplayRangeError, impact, verify
from gavel_server.history.replay_process import ReplayDiedError, ReplayProcesses
from gavel_server.log import LogUnavailableError
from gavel_server.log.redis.log import RedisLog
from redis.asyncio import Redis

from tests.load.finished_work import write_log

Response = TypeVar("Response")

CANDIDATE: Final = compile_rule_set(shipped_rule_set("refunds").replace("version: 1\n", "version: 2\n"))


async def responses_of(responses: AsyncGenerator[Response, None]) -> list[Response]:
    """Return everything that a replay or a simulation yields."""
    return [response async for response in responses]


def children() -> set[int]:
    """Return the process ids of this process's replays."""
    running = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and b"replay_worker" in (process / "cmdline").read_bytes():
                running.add(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return running


async def test_same_verdict(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A process reports the progress and the verdict that a replay here reports, and ends."""
    [_ async for _ in write_log(redis_url, bus, 300, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    here = await responses_of(verify(log))
    there = await responses_of(ReplayProcesses(redis_url, tmp_path).verify(log))
    assert here[-1].verdict.proved
    assert (here[-1], here[-2]) == (there[-1], there[-2])
    assert set() == children()
    await log.close()


async def test_same_impact(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A process finds the impact of a candidate that a simulation here finds."""
    [_ async for _ in write_log(redis_url, bus, 300, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    here = await responses_of(impact(log, CANDIDATE, from_sequence_number=100))
    there = await responses_of(ReplayProcesses(redis_url, tmp_path).impact(log, CANDIDATE, from_sequence_number=100))
    assert here[-1].summary.decisions > 10
    assert [one for one in here if not one.HasField("progress")] == [one for one in there if not one.HasField("progress")]
    await log.close()


async def test_damage_allows_no_forecast(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A simulation reports a changed event with the error of a simulation here, and a replay the same verdict."""
    [_ async for _ in write_log(redis_url, bus, 30, 1.0)]
    async with Redis.from_url(redis_url, protocol=2) as client:
        rows: Any = await client.xrange(log_key(bus))
        await client.delete(log_key(bus))
        for number, (_, fields) in enumerate(rows, start=1):
            if number == 20:
                fields[b"e"] = fields[b"e"].replace(b"order/", b"other/")
            await client.xadd(log_key(bus), fields, id=f"{number}-0")
    log = await RedisLog.connect(redis_url, bus)
    replays = ReplayProcesses(redis_url, tmp_path)
    with pytest.raises(DamagedError) as here:
        await responses_of(impact(log, CANDIDATE))
    with pytest.raises(DamagedError) as there:
        await responses_of(replays.impact(log, CANDIDATE))
    assert here.value.divergence == there.value.divergence
    assert (await responses_of(verify(log)))[-1] == (await responses_of(replays.verify(log)))[-1]
    await log.close()


async def test_problems_are_those_of_a_replay_here(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A range that the log does not hold, and a Redis that does not answer, raise what they raise without a process."""
    [_ async for _ in write_log(redis_url, bus, 30, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    with pytest.raises(ReplayRangeError, match="holds events 1 to"):
        await responses_of(ReplayProcesses(redis_url, tmp_path).verify(log, to_sequence_number=10_000))
    with pytest.raises(LogUnavailableError, match="nowhere"):
        await responses_of(ReplayProcesses(f"unix://{tmp_path}/nowhere", tmp_path).verify(log))
    await log.close()


async def test_a_replay_that_dies_gives_no_verdict(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A process that is killed is an error, and one whose caller leaves is ended."""
    [_ async for _ in write_log(redis_url, bus, 3_000, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    replays = ReplayProcesses(redis_url, tmp_path)
    async with aclosing(replays.verify(log)) as responses:
        await anext(responses)
        (process,) = children()
        os.kill(process, signal.SIGSTOP)  # it may have written some more
        os.kill(process, signal.SIGKILL)
        with pytest.raises(ReplayDiedError, match=f"bus {bus} ended with status -9"):
            await responses_of(responses)
    async with aclosing(replays.verify(log)) as responses:
        await anext(responses)
        assert 1 == len(children())
    assert set() == children()
    await log.close()
