"""The last acknowledged event of each bus, in a file outside the log.

Only this file shows, after a restart, that a log has lost acknowledged events, or that a bus existed. It has one line for each bus, a JSON
list of bus, sequence number, chain hash and the event_id of the first event, padded to LINE_BYTES. Each append overwrites the line of its
bus with one small write, before its callers are answered: the write survives `kill -9`. A sync follows every second and on stop: only a
power cut that also hits Redis can leave a loss of the last second unnoticed. A line lies within one sector of a disk, so that a power cut
leaves it old or new.
"""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gavel_server.errors import GavelServerError
from gavel_server.log import Head
from gavel_server.process.private_files import open_private

# Half a sector of the smallest disks. The longest line, with a bus of 63 characters, has 199 bytes.
LINE_BYTES: Final = 256


class CheckpointError(GavelServerError):
    """The checkpoint file cannot be read; the message says what to do."""


class Checkpoint:
    """The checkpoint file of one server. Servers that share a bus each have their own. Raises CheckpointError, OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heads: dict[str, Head] = {}
        self._incarnations: dict[str, str] = {}
        self._offsets: dict[str, int] = {}  # of the lines
        self._descriptor: int | None = None  # None: the file is missing, of an older form, or damaged by a failed write
        self._is_synced = True
        self._syncing = asyncio.Lock()  # the buses of a server share the file
        if path.exists():
            try:
                self._heads, self._incarnations = _parse(path.read_bytes())
            except (ValueError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"{path} is not a checkpoint of acknowledged events ({error}); restore it, or remove it to accept what the log holds"
                ) from error

    def head_of(self, bus: str) -> Head | None:
        """Return the last acknowledged event of a bus, noted by this process or read from the file, or None."""
        return self._heads.get(bus)

    def incarnation_of(self, bus: str) -> str:
        """Return the event_id of the first event of the bus that the file is about; "" if an earlier build wrote it."""
        return self._incarnations.get(bus, "")

    def note(self, bus: str, head: Head, incarnation: str = "") -> None:
        """Write that everything up to `head` is acknowledged, without a sync. After an error the next `save` tries again and reports.

        `incarnation` is the event_id of the first event; "" keeps the one that is known.
        """
        if self._heads.get(bus) == head:
            return
        self._heads[bus] = head
        if incarnation:
            self._incarnations[bus] = incarnation
        self._is_synced = False
        try:
            self._write(bus, head)
        except OSError:
            self._close()

    async def save(self, heads_of_buses: Mapping[str, Head]) -> None:
        """Note these heads, and wait until the file is on the disk. Does not write an unchanged file. Raises OSError."""
        for bus, head in heads_of_buses.items():
            self.note(bus, head)
        async with self._syncing:
            if self._descriptor is not None and not self._is_current(self._descriptor):
                self._close()
            if self._descriptor is None and self._heads:
                self._replace()
            if self._descriptor is not None and not self._is_synced:
                # Heads that are noted during the sync wait for the next one.
                self._is_synced = True
                try:
                    await asyncio.to_thread(os.fdatasync, self._descriptor)
                except BaseException:
                    self._is_synced = False
                    raise

    def _write(self, bus: str, head: Head) -> None:
        if self._descriptor is None:
            self._replace()
            return
        offset = self._offsets.setdefault(bus, LINE_BYTES * len(self._offsets))
        line = _line(bus, head, self.incarnation_of(bus))
        if os.pwrite(self._descriptor, line, offset) != len(line):
            raise OSError(f"only a part of {self.path} was written")

    def _replace(self) -> None:
        """Replace the file as a whole, with a sync."""
        self._close()
        temporary = self.path.with_name(self.path.name + ".new")
        descriptor = open_private(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            content = b"".join(_line(bus, head, self.incarnation_of(bus)) for bus, head in self._heads.items())
            if os.write(descriptor, content) != len(content):
                raise OSError(f"only a part of {temporary} was written")
            os.fdatasync(descriptor)
            temporary.replace(self.path)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._finalizer = weakref.finalize(self, os.close, descriptor)
        self._offsets = {bus: LINE_BYTES * index for index, bus in enumerate(self._heads)}
        self._is_synced = False

    def _is_current(self, descriptor: int) -> bool:
        """Return whether the open file is still the one at the path: somebody may have removed or replaced it."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._descriptor is not None:
            self._descriptor = None
            self._finalizer()


def _line(bus: str, head: Head, incarnation: str) -> bytes:
    values = [bus, head.sequence_number, head.chain_hash.hex(), *([incarnation] if incarnation else [])]
    return json.dumps(values).encode().ljust(LINE_BYTES - 1) + b"\n"


def _parse(content: bytes) -> tuple[dict[str, Head], dict[str, str]]:
    """Return the heads and the incarnations in a file. Raises ValueError, TypeError, AttributeError.

    After a power cut the last line may be incomplete or zeros: it was never synced. Files of earlier builds are one JSON object, or lines
    without incarnations.
    """
    if not content.startswith(b"["):
        earlier = json.loads(content).items()
        return {bus: Head(int(number), bytes.fromhex(chain_hash)) for bus, (number, chain_hash) in earlier}, {}
    heads: dict[str, Head] = {}
    incarnations: dict[str, str] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        if line.strip(b"\0 "):
            bus, number, chain_hash, *incarnation = json.loads(line)
            heads[str(bus)] = Head(int(number), bytes.fromhex(chain_hash))
            incarnations[str(bus)] = str(incarnation[0]) if incarnation else ""
    if not heads:
        raise ValueError("it has no whole line")
    return heads, incarnations
