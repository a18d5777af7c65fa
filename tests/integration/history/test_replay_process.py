"""Replays in processes of their own, on a real Redis."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from gavel.v1.replay_service_pb2 import VerifyReplayResponse
from gavel_server.history.replay import ReplayRangeError, verify
from gavel_server.history.replay_process import ReplayDiedError, ReplayProcesses
from gavel_server.log import LogUnavailableError
from gavel_server.log.redis.log import RedisLog

from tests.load.finished_work import write_log


async def responses_of(responses: AsyncGenerator[VerifyReplayResponse, None]) -> list[VerifyReplayResponse]:
    """Return everything that a replay yields."""
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
