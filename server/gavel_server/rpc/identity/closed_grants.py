"""The grants of a bus that is not open in this process, which the log store tells without opening the bus.

Opening a bus takes memory, and time for a long log. A caller without rights on the bus must not cause it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.identity.grants import CompiledGrants, compile_grants
from gavel_rules.identity.principal import binds_anonymous

from gavel_server.process.threads import run_in_thread

# Buses whose grants are kept. Beyond that, those that nobody has asked for longest are read again.
BUSES_MAX: Final = 256
# How long the grants of an event are used without reading it again. A bus that was replaced has other grants, often at the same number.
REREAD_SECONDS: Final = 5.0

GrantsNumber = Callable[[str], Awaitable[int | None]]
"""Returns the number of the event with a bus's grants in force; 0: there are none; None: unknown. Raises LogError."""
ReadEnvelope = Callable[[str, int], Awaitable[bytes | None]]
"""Returns an event of a bus by its number, None if it is absent. Raises LogError."""


class KnownGrants(NamedTuple):
    """The grants in force on a bus, None if the bus has none, and whether they bind callers without credentials."""

    grants: CompiledGrants | None
    binds_anonymous: bool = False


class _Reading(NamedTuple):
    """The grants of an event: its number and SHA-256, and when it was read last."""

    number: int
    digest: bytes
    read_at: float
    grants: KnownGrants


class ClosedGrants:
    """Reads the grants of closed buses from the log store."""

    def __init__(self, grants_number: GrantsNumber, read_envelope: ReadEnvelope, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._grants_number: Final = grants_number
        self._read_envelope: Final = read_envelope
        self._monotonic: Final = monotonic
        self._known: Final[OrderedDict[str, _Reading]] = OrderedDict()
        # Large grants take a while to compile: one at a time, in a thread.
        self._compiling: Final = asyncio.Lock()

    async def of(self, bus: str) -> KnownGrants | None:
        """Return the grants of a bus, as of now; None: they are not known without opening the bus. Raises LogError."""
        number = await self._grants_number(bus)
        if number is None:
            return None
        if number == 0:
            return KnownGrants(None)
        known = self._known.get(bus)
        if known is None or known.number != number or self._monotonic() - known.read_at >= REREAD_SECONDS:
            read_at = self._monotonic()
            content = await self._read_envelope(bus, number)
            if content is None:
                return None
            async with self._compiling:
                grants = await self._compiled(bus, content)
            if grants is None:
                return None  # the log is damaged; opening it tells how
            known = self._known[bus] = _Reading(number, hashlib.sha256(content).digest(), read_at, grants)
            if len(self._known) > BUSES_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(bus)
        return known.grants

    async def _compiled(self, bus: str, content: bytes) -> KnownGrants | None:
        """Return the grants of an event, compiled unless they are known; None: it has none."""
        known = self._known.get(bus)
        if known is not None and known.digest == hashlib.sha256(content).digest():
            return known.grants
        event = Envelope.FromString(content)
        text = event.fact.grants_deployed.canonical_json
        if not text:
            return None
        return KnownGrants(await run_in_thread(compile_grants, text), binds_anonymous(event.attestation.method))
