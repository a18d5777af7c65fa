"""The tree of a log that grows: reads new events, adds their entries, and answers with roots and proofs that it has checked itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog
from gavel_rules.events.hash_chain import chain, genesis_hash

from gavel_server.fairness.turns import take_turn
from gavel_server.log import Head, LogCorruptError, LogUnavailableError, Record
from gavel_server.process.threads import run_in_thread
from gavel_server.proofs import tree
from gavel_server.proofs.tiles import DamagedTilesError, LocalTiles, Tiles
from gavel_server.proofs.verifier import NotVerifiedError, check_consistency, check_inclusion, entry_of, leaf_hash

# Events read at once, and events added to the tree at once: some milliseconds of work each.
READ_EVENTS_MAX: Final = 128
APPENDED_EVENTS_MAX: Final = 2048

_LOG: Final = structlog.get_logger(__name__)


class LogSource(Protocol):
    """The part of `EventLog` that a tree reads."""

    bus: str

    async def head(self) -> Head:
        """Return the newest event."""

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int) -> list[Record]:
        """Return the events between two sequence numbers, both included; see EventLog.read."""


class ConsistencyProof(NamedTuple):
    """The roots at two sizes, and the hashes that show that the later tree begins with the earlier one."""

    from_root: bytes
    to_root: bytes
    hashes: list[bytes]


class InclusionProof(NamedTuple):
    """The root at a size, and the hashes that lead from a leaf to it."""

    root: bytes
    hashes: list[bytes]


class LogTree:
    """The tree of one bus's log, in a directory.

    Every method raises the errors of EventLog.read, OSError of the directory, and ValueError for sizes that no tree has.
    """

    def __init__(self, directory: Path) -> None:
        self._tiles: Final = Tiles(LocalTiles(directory))
        self._lock: Final = asyncio.Lock()

    async def root(self, log: LogSource, size: int, caller: str) -> bytes:
        """Return the root of the tree of the first `size` events."""
        async with self._lock:
            for _ in range(2):
                try:
                    await self._extend(log, size, caller)
                    return await run_in_thread(tree.root, self._tiles, size)
                except DamagedTilesError as error:
                    self._discard(log, str(error))
        raise _not_computed(log)

    async def inclusion_proof(self, log: LogSource, record: Record, size: int, caller: str) -> InclusionProof:
        """Return the proof that an event is in the tree of the first `size` events."""
        index = record.sequence_number - 1
        if not 0 <= index < size:
            raise ValueError(f"event {record.sequence_number} is not in a tree of {size} events")
        async with self._lock:
            for _ in range(2):
                try:
                    await self._extend(log, size, caller)
                    root = await run_in_thread(tree.root, self._tiles, size)
                    hashes = await run_in_thread(tree.inclusion_proof, self._tiles, index, size)
                    check_inclusion(leaf_hash(entry_of(record.envelope)), index, size, hashes, root)
                except (NotVerifiedError, DamagedTilesError) as error:
                    self._discard(log, str(error))
                    continue
                return InclusionProof(root, hashes)
        raise _not_computed(log)

    async def consistency_proof(self, log: LogSource, from_size: int, to_size: int, caller: str) -> ConsistencyProof:
        """Return the proof that the tree of `to_size` events begins with that of `from_size` events."""
        if not 0 <= from_size <= to_size:
            raise ValueError(f"a tree of {to_size} events does not begin with one of {from_size}")
        async with self._lock:
            for _ in range(2):
                try:
                    await self._extend(log, to_size, caller)
                    from_root = await run_in_thread(tree.root, self._tiles, from_size)
                    to_root = await run_in_thread(tree.root, self._tiles, to_size)
                    hashes = await run_in_thread(tree.consistency_proof, self._tiles, from_size, to_size)
                    check_consistency(from_size, from_root, to_size, to_root, hashes)
                except (NotVerifiedError, DamagedTilesError) as error:
                    self._discard(log, str(error))
                    continue
                return ConsistencyProof(from_root, to_root, hashes)
        raise _not_computed(log)

    async def _extend(self, log: LogSource, size: int, caller: str) -> None:
        """Extend the tree to the first `size` events. The log must have them."""
        head = self._tiles.head
        if head is not None and not await _holds(log, head.size, head.chain_hash):
            self._discard(log, f"its event {head.size} is not in the log")
            head = None
        chain_hash = genesis_hash(log.bus) if head is None else head.chain_hash
        while self._tiles.size < size:
            entries: list[bytes] = []
            while len(entries) < APPENDED_EVENTS_MAX and self._tiles.size + len(entries) < size:
                await take_turn(caller)
                for record in await read_on(log, self._tiles.size + len(entries) + 1, size):
                    chain_hash = chain(chain_hash, record.envelope)
                    if chain_hash != record.chain_hash:
                        raise LogCorruptError(f"the chain of bus {log.bus} breaks at event {record.sequence_number}; run gavel replay")
                    entries.append(entry_of(record.envelope))
            await run_in_thread(self._tiles.append, entries, chain_hash)

    def _discard(self, log: LogSource, problem: str) -> None:
        _LOG.warning("proofs.tree_discarded", bus=log.bus, problem=problem, note="it is computed again from the log")
        self._tiles.clear()


def _not_computed(log: LogSource) -> LogCorruptError:
    return LogCorruptError(f"the tree of bus {log.bus} cannot be computed; run gavel replay, which examines the log")


async def _holds(log: LogSource, number: int, chain_hash: bytes) -> bool:
    records = await log.read(number, number, 1)
    return [(record.sequence_number, record.chain_hash) for record in records] == [(number, chain_hash)]


async def read_on(log: LogSource, first: int, last: int) -> list[Record]:
    """Return events from `first` on, at least one. Raises LogUnavailableError if the log does not have it."""
    records = await log.read(first, last, READ_EVENTS_MAX)
    if not records or records[0].sequence_number != first:
        raise LogUnavailableError(f"bus {log.bus} does not have event {first}, which its tree needs; restore the log or its archive")
    return records
