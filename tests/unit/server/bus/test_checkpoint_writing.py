"""Writing the checkpoint: several buses at once, and a disk that refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel_server.bus import watcher
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.log import Head
from gavel_server.log.memory import MemoryLog

from tests.support.driver import BUS, WEEK_MS
from tests.support.simulation.servers import Servers, execute, reason, record_event


def head(number: int) -> Head:
    """A head."""
    return Head(number, bytes([number]) * 32)


async def test_concurrent_saves_of_several_buses(tmp_path: Path) -> None:
    """Buses that save to one file at the same time all have their heads in it."""
    path = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(path)
    buses = [f"bus-{number}" for number in range(20)]
    for number in range(1, 6):
        await asyncio.gather(*(checkpoint.save({bus: head(number)}) for bus in buses))
    restarted = Checkpoint(path)
    assert {head(5)} == {restarted.head_of(bus) for bus in buses}


async def test_failed_save_is_retried(tmp_path: Path) -> None:
    """A head whose write failed is not taken as recorded."""
    path = tmp_path / "missing" / "checkpoint.json"
    checkpoint = Checkpoint(path)
    with pytest.raises(FileNotFoundError):
        await checkpoint.save({"a": head(1)})
    path.parent.mkdir()
    await checkpoint.save({"a": head(1)})
    assert head(1) == Checkpoint(path).head_of("a")


def test_server_survives_a_failing_checkpoint_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the checkpoint cannot be written the server follows other servers; later it is written, and the server stops cleanly."""
    monkeypatch.setattr(watcher, "ROUND_INTERVAL_SECONDS", 0.05)

    class Refusing(Checkpoint):
        """A checkpoint on a disk that is full until the test frees it."""

        full = True

        def _write(self, bus: str, head: Head) -> None:
            self._check()
            super()._write(bus, head)

        def _replace(self) -> None:
            self._check()
            super()._replace()

        def _check(self) -> None:
            if self.full:
                raise OSError(28, "No space left on device")

    async def main() -> None:
        servers = Servers()
        checkpoint = Refusing(tmp_path / "checkpoint.json")
        follower, _ = await servers.start(checkpoint=checkpoint)
        writer, _ = await servers.start()
        await asyncio.sleep(0.3)
        await record_event(writer, servers.fact())
        await follower.wait_for(2, 1_000)
        await record_event(follower, servers.fact())
        await follower.stop()
        checkpoint.full = False
        await follower.replica.acknowledged.save()
        assert follower.head == Checkpoint(tmp_path / "checkpoint.json").head_of(follower.bus)

    asyncio.run(main())


def test_answered_events_are_in_the_checkpoint(tmp_path: Path) -> None:
    """When a caller is answered, its event is in the file, so that servers killed together with Redis notice the loss."""

    async def main() -> None:
        servers = Servers()
        path = tmp_path / "checkpoint.json"
        sequencer, _ = await servers.start(checkpoint=Checkpoint(path))
        assert 1 == sequencer.head.sequence_number
        assert sequencer.head == Checkpoint(path).head_of(sequencer.bus)
        for number in range(20):
            await record_event(sequencer, servers.fact(number))
            assert sequencer.head == Checkpoint(path).head_of(sequencer.bus)
        other_path = tmp_path / "other.json"
        other, _ = await servers.start(checkpoint=Checkpoint(other_path))
        assert other.head == Checkpoint(other_path).head_of(other.bus)

    asyncio.run(main())


def test_a_bus_that_was_emptied_is_not_new(tmp_path: Path) -> None:
    """A server that is killed right after it opened a bus, or only read it, does not take the emptied log for a new bus."""

    async def main() -> None:
        servers = Servers()
        for name in ("opened.json", "read.json"):
            await servers.start(checkpoint=Checkpoint(tmp_path / name))
        for name in ("opened.json", "read.json"):
            emptied = MemoryLog(BUS, servers.now_ms, WEEK_MS)
            restarted, _ = await servers.start(checkpoint=Checkpoint(tmp_path / name), log=emptied)
            assert "LOG_REGRESSED" == reason(await execute(restarted, servers.fact()))
            assert 0 == (await emptied.head()).sequence_number

    asyncio.run(main())
