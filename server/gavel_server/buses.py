"""The buses that this process serves: a sequencer each, opened at first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gavel.v1 import error_pb2

from gavel_server.admission import BUS
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.log import LogError

BUS_DEFAULT: Final = "default"
BUSES_MAX: Final = 1_000

OpenSequencer = Callable[[str], Awaitable[Sequencer]]


class Buses:
    """Sequencers by bus name. `opener` makes and starts one."""

    def __init__(self, opener: OpenSequencer) -> None:
        self._open = opener
        self._sequencers: dict[str, Sequencer] = {}
        self._opening: dict[str, asyncio.Task[Sequencer]] = {}
        self._stopping = False

    def opened(self, name: str) -> Sequencer | None:
        """Return a bus that is open already, without waiting: the hot path."""
        return self._sequencers.get(name or BUS_DEFAULT)

    async def get(self, name: str) -> Sequencer:
        """Return a bus, opening it if this is its first use. Raises ServiceError."""
        name = name or BUS_DEFAULT
        sequencer = self._sequencers.get(name)
        if sequencer is not None:
            return sequencer
        opening = self._opening.get(name) or self._begin(name)
        try:
            # A caller who gives up must not end it: a long log would never be read to its end for anybody.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise _shutting_down() from None
            raise

    def all(self) -> list[Sequencer]:
        """Return the buses that are open, by name."""
        return [self._sequencers[name] for name in sorted(self._sequencers)]

    async def stop(self) -> None:
        """Commit and answer what is queued on every bus, and end. No bus is opened any more."""
        self._stopping = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(sequencer.stop() for sequencer in self.all()))

    def _begin(self, name: str) -> asyncio.Task[Sequencer]:
        """Begin to open a bus, for all who ask for it meanwhile. Raises ServiceError."""
        if not BUS.match(name):
            raise invalid([("bus", "is not 1 to 63 characters of a-z, 0-9 and -")])
        if self._stopping:
            raise _shutting_down()
        if len(self._sequencers) + len(self._opening) >= BUSES_MAX:
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, f"this server serves {BUSES_MAX} buses already; use another server")
        opening = self._opening[name] = asyncio.create_task(self._make(name))
        opening.add_done_callback(lambda ended: self._end(name, ended))
        return opening

    async def _make(self, name: str) -> Sequencer:
        try:
            return await self._open(name)
        except LogError as error:
            raise ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)) from error

    def _end(self, name: str, opening: asyncio.Task[Sequencer]) -> None:
        """Keep the bus that was opened. Why one was not, those who asked have heard; the next who asks tries again."""
        del self._opening[name]
        if not opening.cancelled() and opening.exception() is None:
            self._sequencers[name] = opening.result()


def _shutting_down() -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try another one")
