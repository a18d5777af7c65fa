"""Writing the checkpoint: several buses at once, and a disk that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from gavel_server.bus import watching
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.log import Head

from tests.unit.core.servers import Servers, recorded


def head(number: int) -> Head:
    """A head."""
    return Head(number, bytes([number]) * 32)


async def test_buses_may_save_at_the_same_time(tmp_path: Path) -> None:
    """The buses of a server share the file: what they save at once is all there, and none disturbs another."""
    path = tmp_path / "checkpoint.json"
    checkpoint = Checkpoint(path)
    buses = [f"bus-{number}" for number in range(20)]
    for number in range(1, 6):
        await asyncio.gather(*(checkpoint.save({bus: head(number)}) for bus in buses))
    written = Checkpoint(path)
    assert {head(5)} == {written.load(bus) for bus in buses}


async def test_what_was_not_written_is_tried_again(tmp_path: Path) -> None:
    """A head that could not be written does not count as recorded."""
    path = tmp_path / "missing" / "checkpoint.json"
    checkpoint = Checkpoint(path)
    with pytest.raises(FileNotFoundError):
        await checkpoint.save({"a": head(1)})
    path.parent.mkdir()
    await checkpoint.save({"a": head(1)})
    assert head(1) == Checkpoint(path).load("a")


def test_a_disk_that_refuses_does_not_blind_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the checkpoint cannot be written a server still sees what others write; afterwards it is written, and it stops cleanly."""
    monkeypatch.setattr(watching, "ROUND_INTERVAL_SECONDS", 0.05)

    class Refusing(Checkpoint):
        """A checkpoint on a disk that is full until told otherwise."""

        full = True

        async def save(self, heads_of_buses: Mapping[str, Head]) -> None:
            """Save, or not."""
            if self.full:
                raise OSError(28, "No space left on device")
            await super().save(heads_of_buses)

    async def main() -> None:
        servers = Servers()
        checkpoint = Refusing(tmp_path / "checkpoint.json")
        follower, _ = await servers.start(checkpoint=checkpoint)
        writer, _ = await servers.start()
        await asyncio.sleep(0.3)
        await recorded(writer, servers.fact())
        await follower.wait_for(2, 1_000)
        await follower.stop()
        checkpoint.full = False
        await follower.replica.save_checkpoint()
        assert follower.head == Checkpoint(tmp_path / "checkpoint.json").load(follower.bus)

    asyncio.run(main())
