"""Replays in processes of their own, on a real Redis."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
import uvloop
from gavel.v1 import error_pb2
from gavel.v1.replay_service_pb2 import REPLAY_STATUS_DAMAGED, VerifyReplayResponse
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.redis_keys import log_key
from gavel_rules.replay import DamagedError
from gavel_server.errors import ServiceError
from gavel_server.history import replay_process, replay_worker
from gavel_server.history.replay import ReplayRangeError, impact, verify
from gavel_server.history.replay_process import ReplayDiedError, ReplayProcesses
from gavel_server.log import LogCorruptError, LogUnavailableError
from gavel_server.log.redis.log import RedisLog
from redis.asyncio import Redis

from tests.load.finished_work import write_log

Response = TypeVar("Response")

CANDIDATE: Final = compile_rule_set(shipped_rule_set("refunds").replace("version: 1\n", "version: 2\n"))


async def responses_of(responses: AsyncGenerator[Response, None]) -> list[Response]:
    """Return everything that a replay or a simulation yields."""
    return [response async for response in responses]


def children(argument: str = "gavel_server.history.replay_worker") -> set[int]:
    """Return the process ids of this process's children with an argument: by default its replays."""
    running = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                running.add(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return running


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays keep their priority: beside many other tests they would take minutes."""
    program = "import gavel_server.history.replay_worker as w; w.lower_priority = lambda _: None; w.main()"
    monkeypatch.setattr(replay_process, "_COMMAND", (sys.executable, "-P", "-c", program, "gavel_server.history.replay_worker"))


@pytest.mark.usefixtures("eager")
async def test_same_verdict(redis_url: str, bus: str) -> None:
    """A process reports the progress and the verdict that a replay here reports, and ends."""
    [_ async for _ in write_log(redis_url, bus, 300, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    here = await responses_of(verify(log))
    there = await responses_of(ReplayProcesses(redis_url).verify(log))
    assert here[-1].verdict.proved
    assert (here[-1], here[-2]) == (there[-1], there[-2])
    assert set() == children()
    await log.close()


@pytest.mark.usefixtures("eager")
async def test_same_impact(redis_url: str, bus: str) -> None:
    """A process finds the impact of a candidate that a simulation here finds."""
    [_ async for _ in write_log(redis_url, bus, 300, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    here = await responses_of(impact(log, CANDIDATE, from_sequence_number=100))
    there = await responses_of(ReplayProcesses(redis_url).impact(log, CANDIDATE, from_sequence_number=100))
    assert here[-1].summary.decisions > 10
    assert [one for one in here if not one.HasField("progress")] == [one for one in there if not one.HasField("progress")]
    await log.close()


@pytest.mark.long
@pytest.mark.usefixtures("eager")
async def test_damage_allows_no_forecast(redis_url: str, bus: str) -> None:
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
    replays = ReplayProcesses(redis_url)
    with pytest.raises(DamagedError) as here:
        await responses_of(impact(log, CANDIDATE))
    with pytest.raises(DamagedError) as there:
        await responses_of(replays.impact(log, CANDIDATE))
    assert here.value.divergence == there.value.divergence
    assert (await responses_of(verify(log)))[-1] == (await responses_of(replays.verify(log)))[-1]
    await log.close()


@pytest.mark.long
@pytest.mark.usefixtures("eager")
async def test_a_log_that_lacks_events_is_damaged(redis_url: str, bus: str) -> None:
    """A log that cannot even be opened gets the verdict of a replay here, and allows no forecast either."""
    [_ async for _ in write_log(redis_url, bus, 30, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    async with Redis.from_url(redis_url, protocol=2) as client:
        await client.xdel(log_key(bus), "20-0")
    replays = ReplayProcesses(redis_url)
    here, there = (await responses_of(verify(log)))[-1].verdict, (await responses_of(replays.verify(log)))[-1].verdict
    assert (REPLAY_STATUS_DAMAGED, "log-corrupt") == (here.status, here.divergence.kind)
    assert (REPLAY_STATUS_DAMAGED, "log-corrupt") == (there.status, there.divergence.kind)
    assert "event 20 is missing" in there.message
    with pytest.raises(LogCorruptError):
        await responses_of(impact(log, CANDIDATE))
    with pytest.raises(LogCorruptError, match="event 20 is missing"):
        await responses_of(replays.impact(log, CANDIDATE))
    await log.close()


@pytest.mark.long
@pytest.mark.usefixtures("eager")
async def test_problems_are_those_of_a_replay_here(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A range that the log does not hold, and a Redis that does not answer, raise what they raise without a process."""
    [_ async for _ in write_log(redis_url, bus, 30, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    with pytest.raises(ReplayRangeError, match="holds events 1 to"):
        await responses_of(ReplayProcesses(redis_url).verify(log, to_sequence_number=10_000))
    with pytest.raises(LogUnavailableError, match="nowhere"):
        await responses_of(ReplayProcesses(f"unix://{tmp_path}/nowhere").verify(log))
    await log.close()


@pytest.mark.long
async def test_a_replay_that_dies_gives_no_verdict(redis_url: str, bus: str) -> None:
    """A process gives way to its server. One that is killed is an error, and one whose caller leaves is ended."""
    [_ async for _ in write_log(redis_url, bus, 3_000, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    replays = ReplayProcesses(redis_url)
    async with aclosing(replays.verify(log)) as responses:
        await anext(responses)
        (process,) = children()
        os.kill(process, signal.SIGSTOP)  # it may have written some more
        assert os.getpriority(os.PRIO_PROCESS, process) > os.nice(0)
        assert oom_score(process) > oom_score(os.getpid())
        os.kill(process, signal.SIGKILL)
        with pytest.raises(ServiceError, match="ended by signal 9; try again") as error_info:
            await responses_of(responses)
        assert (error_pb2.ERROR_REASON_QUEUE_FULL, True) == (error_info.value.reason, error_info.value.retry_after_ms > 0)
    async with aclosing(replays.verify(log)) as responses:
        await anext(responses)
        assert 1 == len(children())
    assert set() == children()
    await log.close()


async def test_a_replay_that_cannot_start(redis_url: str, bus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors for its process a replay is refused for now; one whose program fails is an error of the server."""
    [_ async for _ in write_log(redis_url, bus, 30, 1.0)]
    log = await RedisLog.connect(redis_url, bus)
    replays = ReplayProcesses(redis_url)
    with limited_descriptors(), pytest.raises(ServiceError, match="Too many open files; try again"):
        await responses_of(replays.verify(log))
    monkeypatch.setattr(replay_process, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(ReplayDiedError, match=f"bus {bus} ended with status 3"):
        await responses_of(replays.verify(log))
    await log.close()


@contextmanager
def limited_descriptors() -> Iterator[None]:
    """Within the block this process can open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Writes responses without content for ever.
TALKATIVE: Final = "import sys\nwhile True: sys.stdout.buffer.write(bytes(5 * 1024))"


def oom_score(process: int) -> int:
    """Return how much rather than others the kernel kills a process if memory runs out."""
    return int(Path(f"/proc/{process}/oom_score_adj").read_text())


def bytes_written(process: int) -> int:
    """Return how many bytes a process has written so far."""
    return int(Path(f"/proc/{process}/io").read_text().partition("wchar: ")[2].split()[0])


def files_of(process: int) -> dict[str, Path]:
    """Return what each descriptor of a process leads to."""
    return {path.name: path.readlink() for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()}


async def leave_full_pipe(log: RedisLog) -> bool:
    """Ask for a replay that writes for ever, and leave once it must wait. Return whether its pipe is still open."""
    async with aclosing(ReplayProcesses(log.url).verify(log)) as responses:
        assert VerifyReplayResponse() == await anext(responses)
        (process,) = children(TALKATIVE)
        pipe = files_of(process)["1"]
        written = -1
        while written != (written := bytes_written(process)):  # noqa: ASYNC110  # a full pipe sets no event
            await asyncio.sleep(0.1)
    await asyncio.sleep(0)  # transports are closed in the next round of the event loop
    return pipe in files_of(os.getpid()).values()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_a_caller_leaves_answers_unread(
    redis_url: str, bus: str, monkeypatch: pytest.MonkeyPatch, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """A process that waits for its caller to read ends with the call, and its pipe is closed."""
    monkeypatch.setattr(replay_process, "_COMMAND", (sys.executable, "-c", TALKATIVE))
    log = await RedisLog.connect(redis_url, bus)

    def run() -> bool:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(asyncio.wait_for(leave_full_pipe(log), 30))

    assert not await asyncio.to_thread(run)
    assert set() == children(TALKATIVE)
    await log.close()


class UnreadOutput:
    """The output of a worker that nobody reads yet."""

    def __init__(self) -> None:
        self.is_full = threading.Event()
        self.is_read = threading.Event()
        self.content = bytearray()

    def write(self, data: bytes) -> None:
        """Take bytes once somebody reads."""
        self.is_full.set()
        assert self.is_read.wait(timeout=30), "the worker does nothing else while it waits"
        self.content += data

    def flush(self) -> None:
        """Do nothing more."""


async def test_a_worker_with_an_unread_output_goes_on(redis_url: str, bus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose messages nobody reads still takes the replies of its log, which would otherwise seem to be late."""
    [_ async for _ in write_log(redis_url, bus, 30, 1.0)]
    output = UnreadOutput()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=output))
    order = {"store": redis_url, "archive": "", "bus": bus, "engine": 0, "from": 0, "to": 0, "data": "", "document": ""}
    replay = asyncio.create_task(replay_worker._replay(order))
    while not output.is_full.is_set():  # noqa: ASYNC110  # a thread sets it
        await asyncio.sleep(0.01)
    output.is_read.set()
    await replay
    kind, _ = replay_worker.HEADER.unpack(output.content[-replay_worker.HEADER.size :])
    assert replay_worker.MessageKind.END == kind
