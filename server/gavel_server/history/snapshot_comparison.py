"""Compares the snapshots of a bus with the states that a replay of its log passes.

A snapshot that cannot be used, or is of another log, proves nothing and is left out with a line that says why. One that the log confirms
must hold the recomputed state, bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import Final

import structlog
from gavel.v1.replay_service_pb2 import Divergence
from gavel_rules.replay import DivergedError
from gavel_rules.state.state import State

from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.turns import call_slice
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.history.snapshot_parts import SnapshotError, state_parts
from gavel_server.log import EventLog

# Parts of a state that are hashed before other tasks run; each has some hundred rows.
SLICE_PARTS: Final = 1

_LOG: Final = structlog.get_logger(__name__)


class SnapshotComparison:
    """The snapshots of a bus up to an event. Call `compare` after each event that `is_due` names."""

    def __init__(self, files: SnapshotFiles | None) -> None:
        self._files = files
        self._digests: dict[int, bytes] = {}
        self.compared = 0

    async def load(self, log: EventLog, last: int) -> None:
        """Compute the digests of the snapshots up to an event that the log confirms. Raises LogError."""
        if self._files is None:
            return
        for number in self._files.numbers():
            if number > last:
                continue
            try:
                position = self._files.read_position(number)
                record = (await log.read_many([number])).get(number)
                if record is None or record.chain_hash != position.chain_hash:
                    raise SnapshotError(f"the log has another event {number}: the snapshot is of another log")
                self._digests[number] = self._files.read_digest(number)
            except SnapshotError as error:
                _LOG.warning("snapshot.refused", bus=self._files.bus, sequence_number=number, problem=str(error))

    @property
    def digests(self) -> dict[int, bytes]:
        """The digests of the snapshots that have not been compared, by sequence number."""
        return dict(self._digests)

    def is_due(self, number: int) -> bool:
        """Return whether the state after an event is to be compared."""
        return number in self._digests

    async def compare(self, number: int, state: State) -> None:
        """Compare the state after an event. Raises DivergedError."""
        expected = self._digests.pop(number)
        digest = hashlib.sha256()
        time_slice = call_slice(SLICE_PARTS, INTERNAL)
        for part in state_parts(state):
            digest.update(part)
            await time_slice.spend(1)
        if digest.digest() != expected:
            message = f"the snapshot of event {number} holds another state than the log gives; remove it, and keep it for analysis"
            raise DivergedError(Divergence(sequence_number=number, kind="snapshot-mismatch", message=message))
        self.compared += 1
