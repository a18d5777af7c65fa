"""The guards of the clock, and the file that remembers what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest
from gavel_server.bus.checkpoint import Checkpoint, CheckpointError
from gavel_server.clock import LAG_MS_MAX, SKEW_MS_MAX, GuardedClock
from gavel_server.log import Head

NOW_MS = 1_700_000_000_000


def clock() -> GuardedClock:
    """A clock that stands still."""
    return GuardedClock(lambda: NOW_MS)


def test_a_clock_that_agrees_may_date_events() -> None:
    """A clock without any sign of trouble has no problem."""
    assert ("", NOW_MS) == (clock().problem(0), clock().now_ms())


@pytest.mark.parametrize(
    ("store_ms", "sent_ms", "received_ms", "bad"),
    [
        pytest.param(1_000, 1_000, 1_000, False, id="equal"),
        pytest.param(5_000, 0, 10_000, False, id="between the two readings, however far apart"),
        pytest.param(0, SKEW_MS_MAX, SKEW_MS_MAX + 50, False, id="behind by the limit"),
        pytest.param(0, SKEW_MS_MAX + 1, SKEW_MS_MAX + 50, True, id="behind by more"),
        pytest.param(SKEW_MS_MAX + 50, 0, 50, False, id="ahead by the limit"),
        pytest.param(SKEW_MS_MAX + 51, 0, 50, True, id="ahead by more"),
    ],
)
def test_the_store_s_clock_is_the_measure(store_ms: int, sent_ms: int, received_ms: int, bad: bool) -> None:
    """Only what the two readings around the store's answer leave no doubt of counts as skew."""
    guarded = clock()
    guarded.observe(store_ms, sent_ms, received_ms)
    assert bad == ("synchronise" in guarded.problem(0))


def test_a_clock_recovers() -> None:
    """The newest observation counts."""
    guarded = clock()
    guarded.observe(10_000, 0, 0)
    assert guarded.problem(0)
    guarded.observe(0, 0, 0)
    assert "" == guarded.problem(0)


@pytest.mark.parametrize(("ahead_ms", "bad"), [(LAG_MS_MAX, False), (LAG_MS_MAX + 1, True), (-10_000_000, False)])
def test_a_clock_must_not_lag_behind_the_log(ahead_ms: int, bad: bool) -> None:
    """A clock more than five seconds behind the log's last event may not date events."""
    assert bad == bool(clock().problem(NOW_MS + ahead_ms))


# The checkpoint


def head(number: int) -> Head:
    """A head."""
    return Head(number, bytes([number]) * 32)


async def test_a_checkpoint_survives_a_restart(tmp_path: Path) -> None:
    """What was saved is there for the next process, bus by bus, the newest of each."""
    path = tmp_path / "checkpoint.json"
    first = Checkpoint(path)
    assert None is first.load("a")
    await first.save({"a": head(1)})
    await first.save({"b": head(7)})
    await first.save({"a": head(2)})
    second = Checkpoint(path)
    assert [head(2), head(7), None] == [second.load(bus) for bus in ("a", "b", "c")]


async def test_what_is_loaded_is_from_before_this_process(tmp_path: Path) -> None:
    """Saving keeps one file, replaced as a whole, and writes only what changed."""
    path = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(path)
    await checkpoint.save({"a": head(1)})
    written = path.stat()
    await checkpoint.save({"a": head(1)})
    assert written == path.stat()
    assert ["checkpoint.json"] == os.listdir(tmp_path)
    assert {"a": [1, head(1).chain_hash.hex()]} == json.loads(path.read_text())


async def test_a_save_whose_caller_is_cancelled_is_finished_before_the_next(tmp_path: Path) -> None:
    """A bus that stops in the middle of the regular save does not write the file at the same time."""
    begun, go_on = threading.Event(), threading.Event()

    class SlowDisk(Checkpoint):
        """A checkpoint whose first write takes until it is told to go on."""

        def _write(self, text: str) -> None:
            if not begun.is_set():
                begun.set()
                go_on.wait(60)
            super()._write(text)

    path = tmp_path / "checkpoint.json"
    checkpoint = SlowDisk(path)
    regular = asyncio.create_task(checkpoint.save({"a": head(1)}))
    assert await asyncio.to_thread(begun.wait, 60)
    regular.cancel()
    with pytest.raises(asyncio.CancelledError):
        await regular
    last = asyncio.create_task(checkpoint.save({"b": head(7)}))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not path.exists()
    go_on.set()
    await last
    assert [head(1), head(7)] == [Checkpoint(path).load(bus) for bus in ("a", "b")]


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"a": 1}', '{"a": [1, "xy"]}', '{"a": ["one", ""]}', '{"a": [1]}'])
def test_a_broken_checkpoint_is_an_error(tmp_path: Path, content: str) -> None:
    """A file that is no checkpoint stops the server with what to do; it is never taken for "nothing acknowledged"."""
    path = tmp_path / "checkpoint.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="restore it, or remove it"):
        Checkpoint(path)
