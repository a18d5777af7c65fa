"""Digests of projections (`projection_digest`): computed in slices, one at a time, and remembered until the bus moves.

A digest describes the state at one head. Events that are committed while it is computed start it again. A bus that is never
idle for long enough gets no digest, since writes do not wait for a read.
"""

from __future__ import annotations

import hashlib
from typing import Final

from gavel.v1 import error_pb2
from gavel_rules.state.digest import digest_parts, digest_text

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.turns import call_slice
from gavel_server.fairness.work_slots import digest_slots
from gavel_server.log import Head

# The text of a state that is hashed before other tasks run: 3 ms of work on evidence of small values.
SLICE_BYTES: Final = 128 * 1024
# How often events may start a digest again.
DIGEST_TRIES_MAX: Final = 5
DIGEST_RETRY_AFTER_MS: Final = 1_000


class ProjectionDigests:
    """The digests of the buses of this server."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Head, str]] = {}
        self._slots = digest_slots()

    async def read(self, sequencer: Sequencer, address: str) -> str:
        """Return the digest of the settled state at the moment of return. Raises ServiceError QUEUE_FULL."""
        await sequencer.settled_state()
        known = self._find(sequencer)
        if known:
            return known
        async with self._slots.occupy(address):
            for _ in range(DIGEST_TRIES_MAX):
                if self._find(sequencer) or await self._compute(sequencer):
                    break
        await sequencer.settled_state()
        known = self._find(sequencer)
        if not known:
            message = f"bus {sequencer.bus} changed while the digest of its projection was computed; try again when it is less busy"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=DIGEST_RETRY_AFTER_MS)
        return known

    def _find(self, sequencer: Sequencer) -> str:
        head, digest = self._known.get(sequencer.bus, (None, ""))
        return digest if head == sequencer.head else ""

    async def _compute(self, sequencer: Sequencer) -> bool:
        """Compute the digest of the present state; return False if events moved the state meanwhile."""
        state = await sequencer.settled_state()
        head = sequencer.head
        text = hashlib.sha256()
        time_slice = call_slice(SLICE_BYTES, INTERNAL)  # one digest serves all callers
        for part in digest_parts(state.store):
            text.update(part.encode())
            if not time_slice.is_over(len(part) or SLICE_BYTES):
                continue
            await time_slice.end()
            if (await sequencer.settled_state()) is not state or sequencer.head != head:
                return False
        self._known[sequencer.bus] = head, digest_text(text)
        return True
