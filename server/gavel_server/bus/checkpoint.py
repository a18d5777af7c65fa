"""What this server has acknowledged, kept outside the log: the only way to notice after a restart that a log lost events.

One small JSON file: bus -> sequence number and chain hash, replaced as a whole every second and on stop.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from gavel_server.log import Head


class CheckpointError(Exception):
    """The checkpoint file cannot be read; the message says what to do."""


class Checkpoint:
    """The file. A server that shares a bus with others keeps its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heads: dict[str, Head] = {}
        self._writing = asyncio.Lock()  # the buses of a server share the file
        if path.exists():
            try:
                content = json.loads(path.read_text())
                self._heads = {bus: Head(int(number), bytes.fromhex(chain_hash)) for bus, (number, chain_hash) in content.items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"{path} is not a checkpoint of acknowledged events ({error}); restore it, or remove it to accept what the log holds"
                ) from error

    def load(self, bus: str) -> Head | None:
        """Return the last event of a bus that was acknowledged before this process began, or None."""
        return self._heads.get(bus)

    async def save(self, heads_of_buses: Mapping[str, Head]) -> None:
        """Record that everything up to these heads is acknowledged. Does nothing if that is recorded. Raises OSError."""
        # What has begun comes to its end, though its caller be cancelled: two writes at once would share the temporary file.
        await asyncio.shield(self._save(heads_of_buses))

    async def _save(self, heads_of_buses: Mapping[str, Head]) -> None:
        async with self._writing:
            heads = {**self._heads, **heads_of_buses}
            if heads == self._heads:
                return
            content = {name: [known.sequence_number, known.chain_hash.hex()] for name, known in sorted(heads.items())}
            await asyncio.to_thread(self._write, json.dumps(content) + "\n")
            self._heads = heads

    def _write(self, text: str) -> None:
        temporary = self.path.with_name(self.path.name + ".new")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
