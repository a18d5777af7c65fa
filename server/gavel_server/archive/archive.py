"""The archive of one bus: which segments it has, and their events."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from gavel_rules.events.hash_chain import genesis_hash

from gavel_server.archive.segments import (
    FOLDER,
    Manifest,
    decode_manifest,
    decode_segment,
    encode_manifest,
    is_manifest,
    manifest_name,
)
from gavel_server.archive.storage import ArchiveError, Storage
from gavel_server.log.entries import Head, Record
from gavel_server.proofs.tiles import Tiles
from gavel_server.proofs.verifier import entry_of

# Segments that stay decoded in memory, each with at most SEGMENT_BYTES of envelopes.
CACHED_SEGMENTS_MAX: Final = 4


class Archive:
    """The sealed segments of one bus. They follow each other from event 1. Raises ArchiveError. Use it from one event loop."""

    def __init__(self, storage: Storage, bus: str) -> None:
        self.bus: Final = bus
        self.storage: Final = storage
        self._manifests: list[Manifest] = []
        self._cached: OrderedDict[int, list[Record]] = OrderedDict()  # by first number
        self._tiles: Tiles | None = None
        self._lock: Final = asyncio.Lock()  # of the cached segments
        self._refreshing: Final = asyncio.Lock()

    @property
    def end(self) -> Head:
        """The last event of the archive, as far as this process knows."""
        if not self._manifests:
            return Head(0, genesis_hash(self.bus))
        return Head(self._manifests[-1].last, self._manifests[-1].chain_hash)

    @property
    def manifests(self) -> Sequence[Manifest]:
        """The segments that this process knows, in order."""
        return self._manifests

    async def refresh(self) -> None:
        """Read the manifests that are new. Raises ArchiveError if they leave a gap, or are of another log."""
        async with self._refreshing:
            names = await asyncio.to_thread(self.storage.names, FOLDER)
            for name in filter(is_manifest, names):
                if int(name[:12]) <= self.end.sequence_number:
                    continue
                content = await asyncio.to_thread(self.storage.read, f"{FOLDER}/{name}")
                if content is None:
                    raise ArchiveError(f"{self.storage.place}/{FOLDER}/{name} disappeared; check that nothing deletes the archive")
                self._add(decode_manifest(content, name))

    async def add(self, manifest: Manifest, content: bytes) -> None:
        """Write a segment that follows the end, read it back, and record it. Repeating this changes nothing."""
        async with self._refreshing:
            self._check(manifest)
            await asyncio.to_thread(self.storage.write, manifest.file, content)
            read = await asyncio.to_thread(self.storage.read, manifest.file)
            await asyncio.to_thread(decode_segment, manifest, read or b"")
            await asyncio.to_thread(self.storage.write, manifest_name(manifest.file), encode_manifest(manifest))
            self._add(manifest)

    async def complete_tree(self) -> None:
        """Add the entries of the segments to the Merkle tree of the archive (docs/proofs.md), as far as it lacks them."""
        if self._tiles is None:
            self._tiles = await asyncio.to_thread(Tiles, self.storage)
        tiles = self._tiles
        while tiles.size < self.end.sequence_number:
            manifest = self._manifests[bisect_left(self._manifests, tiles.size + 1, key=lambda one: one.last)]
            records = await self._segment(tiles.size + 1)
            entries = [entry_of(record.envelope) for record in records[tiles.size + 1 - manifest.first :]]
            await asyncio.to_thread(tiles.append, entries, manifest.chain_hash)

    async def verify(self, first: int, last: int) -> None:
        """Read the stored segments with events `first` to `last` and their manifests. Raises ArchiveError if one is missing or damaged."""
        start = bisect_left(self._manifests, first, key=lambda one: one.last)
        stop = bisect_left(self._manifests, last + 1, key=lambda one: one.first)
        for manifest in self._manifests[start:stop]:
            name = manifest_name(manifest.file)
            stored = decode_manifest(await self._read_file(name), name)
            if stored._replace(sha256=manifest.sha256) != manifest:
                raise ArchiveError(f"{self.storage.place}/{name} describes other events than when it was last read; restore it from a copy")
            await asyncio.to_thread(decode_segment, manifest, await self._read_file(manifest.file))

    async def read(self, first: int, last: int, limit: int, bytes_max: int) -> list[Record]:
        """Return events from `first` on, at most `limit`, up to the one that reaches `bytes_max`; [] if the archive does not have it."""
        records: list[Record] = []
        size = 0
        while first <= min(last, self.end.sequence_number):
            segment = await self._segment(first)
            for record in segment[first - segment[0].sequence_number :]:
                if record.sequence_number > last or len(records) == limit or size >= bytes_max:
                    return records
                records.append(record)
                size += len(record.envelope)
            first = segment[-1].sequence_number + 1
        return records

    async def read_many(self, numbers: Sequence[int]) -> dict[int, Record]:
        """Return the events with these numbers; those that the archive does not have are absent."""
        records = {}
        for number in sorted(numbers):
            if 0 < number <= self.end.sequence_number:
                segment = await self._segment(number)
                records[number] = segment[number - segment[0].sequence_number]
        return records

    def forget_segments(self) -> None:
        """Drop the decoded segments from memory; further reads decode them again."""
        self._cached.clear()

    async def _segment(self, number: int) -> list[Record]:
        manifest = self._manifests[bisect_left(self._manifests, number, key=lambda one: one.last)]
        async with self._lock:
            cached = self._cached.get(manifest.first)
            if cached is not None:
                self._cached.move_to_end(manifest.first)
                return cached
            records = await asyncio.to_thread(decode_segment, manifest, await self._read_file(manifest.file))
            self._cached[manifest.first] = records
            if len(self._cached) > CACHED_SEGMENTS_MAX:
                self._cached.popitem(last=False)
            return records

    async def _read_file(self, name: str) -> bytes:
        content = await asyncio.to_thread(self.storage.read, name)
        if content is None:
            raise ArchiveError(f"{self.storage.place}/{name} is missing; restore it from a copy")
        return content

    def _check(self, manifest: Manifest) -> None:
        end = self.end
        if manifest.bus != self.bus:
            raise ArchiveError(f"{self.storage.place} is of bus {manifest.bus}, not of {self.bus}; give each bus an archive of its own")
        if manifest.first != end.sequence_number + 1:
            raise ArchiveError(f"the archive {self.storage.place} lacks event {end.sequence_number + 1}; restore its segment from a copy")
        if manifest.chain_hash_before != end.chain_hash:
            raise ArchiveError(f"{self.storage.place}/{manifest.file} does not follow the segment before it: it is of another log")

    def _add(self, manifest: Manifest) -> None:
        self._check(manifest)
        self._manifests.append(manifest)
