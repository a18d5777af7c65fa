"""The notary signs what a server has confirmed and it has read itself, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel_server.log import LogUnavailableError, Record
from gavel_server.log.memory import MemoryLog
from gavel_server.proofs import log_tree
from gavel_server.proofs.keys import NotaryKey, generate_key
from gavel_server.proofs.notary import ConfirmedTree, NotaryError, open_notary
from gavel_server.proofs.tiles import LocalTiles, Tiles
from gavel_server.proofs.tree import CompactRange, root
from gavel_server.proofs.verifier import entry_of, leaf_hash
from gavel_server.proofs.witnesses import ForkError

from tests.support.driver import BUS
from tests.support.simulation.servers import Servers, record_event

KEY: NotaryKey = generate_key(f"gavel/{BUS}")


async def log_with(facts: int) -> MemoryLog:
    """Return a log with its first event and some facts."""
    servers = Servers()
    sequencer, _ = await servers.start()
    for number in range(facts):
        await record_event(sequencer, servers.fact(number))
    return servers.log


async def tree_of(log: MemoryLog, size: int) -> ConfirmedTree:
    """Return the tree of a log's first events."""
    compact = CompactRange()
    for record in await log.read(1, size):
        compact.append(leaf_hash(entry_of(record.envelope)))
    return ConfirmedTree(size, compact.root())


async def sign(log: MemoryLog, directory: Path, *trees: ConfirmedTree) -> list[tuple[int, bytes]]:
    """Let one notary sign once for each of the trees; return the size and root of each checkpoint."""
    async with open_notary(log, [KEY], directory, replays=False) as notary:
        return [(one.size, one.root) for one in [await notary.notarize(tree) for tree in trees]]


def signed_size(directory: Path) -> int:
    """Return the size of the newest checkpoint in a directory; 0 without one."""
    path = directory / "checkpoint"
    return int(path.read_text(encoding="utf-8").splitlines()[1]) if path.exists() else 0


def test_only_confirmed_events_are_signed(tmp_path: Path) -> None:
    """A log with later events is signed up to the confirmed ones, and further once more of them are confirmed."""

    async def main() -> None:
        log = await log_with(5)
        first, same, last = [await tree_of(log, size) for size in (4, 4, 6)]
        assert [tuple(first), tuple(same), tuple(last)] == await sign(log, tmp_path, first, same, last)

    asyncio.run(main())


def test_events_that_are_not_the_servers(tmp_path: Path) -> None:
    """If a server confirms other events than the notary reads, nothing is signed."""

    async def main() -> None:
        log = await log_with(5)
        await sign(log, tmp_path, await tree_of(log, 2))
        foreign = ConfirmedTree(4, (await tree_of(log, 5)).root)
        with pytest.raises(NotaryError, match="the first 4 events of gavel/default are not those of the server, so nothing is signed"):
            await sign(log, tmp_path, foreign)

    asyncio.run(main())
    assert 2 == signed_size(tmp_path)


@pytest.mark.parametrize("is_shorter", [True, False])
def test_lost_events(is_shorter: bool, tmp_path: Path) -> None:
    """A log that ends before what was signed is refused, whether the notary's store or the server lacks the events."""

    async def main() -> None:
        log = await log_with(5)
        await sign(log, tmp_path, await tree_of(log, 6))
        shorter = await log_with(1)
        read, confirmed = (shorter, await tree_of(log, 6)) if is_shorter else (log, await tree_of(log, 2))
        with pytest.raises(ForkError, match="gavel/default has 2 events, but 6 were signed or confirmed: events are lost"):
            await sign(read, tmp_path, confirmed)

    asyncio.run(main())


def test_an_empty_log(tmp_path: Path) -> None:
    """A log without events is not signed."""

    async def main() -> None:
        log = MemoryLog(BUS, clock=lambda: 0)
        with pytest.raises(NotaryError, match="gavel/default has no events"):
            await sign(log, tmp_path, await tree_of(log, 0))

    asyncio.run(main())
    assert 0 == signed_size(tmp_path)


def test_an_outage_in_the_middle_of_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the log was away between two reads, the same notary goes on, and its tree has every event."""
    monkeypatch.setattr(log_tree, "READ_EVENTS_MAX", 2)

    async def main() -> None:
        log = await log_with(6)
        tree = await tree_of(log, 7)
        read = log.read

        async def fail(first: int, last: int, limit: int) -> list[Record]:
            if first == 5:
                monkeypatch.setattr(log, "read", read)
                raise LogUnavailableError("cannot reach the log")
            return await read(first, last, limit)

        monkeypatch.setattr(log, "read", fail)
        async with open_notary(log, [KEY], tmp_path, replays=False) as notary:
            with pytest.raises(LogUnavailableError):
                await notary.notarize(tree)
            assert tree.root == (await notary.notarize(tree)).root
        assert tree.root == root(Tiles(LocalTiles(tmp_path)), tree.size)

    asyncio.run(main())
