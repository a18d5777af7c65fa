"""Slots: how much expensive work of one kind runs on a server at once, and how callers share it.

The callers of one address (`callers`) occupy at most one slot of a kind. A call that finds no slot waits for a moment and is then refused.
A free slot goes to a waiting address other than the one that has just left it, if there is one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gavel.v1 import error_pb2

from gavel_server.errors import ServiceError
from gavel_server.fairness.waiting import announce_wait

# Replays and simulations. Each takes a processor as long as it runs.
REPLAYS_MAX: Final = 2
REPLAY_RETRY_AFTER_MS: Final = 5_000
# Reads that go through the log: GetTrace, and ListEvents by category, subject or trace.
SCANS_MAX: Final = 2
SCAN_WAIT_SECONDS_MAX: Final = 5.0
SCANS_WAITING_MAX: Final = 256
SCAN_RETRY_AFTER_MS: Final = 1_000
# Digests of projections, which read the whole state of a bus.
DIGESTS_MAX: Final = 1
# Pages of the projection of a subject with many keys. Each takes up to 10 ms in one piece, and all that wait for a commit begin together.
WIDE_SUBJECTS_MAX: Final = 2


class Slots:
    """At most `slots_max` pieces of `work` at once, one for each address. At most `waiting_max` wait, each for `wait_seconds_max`."""

    def __init__(
        self, work: str, slots_max: int, *, wait_seconds_max: float = 0.0, waiting_max: int = 0, retry_after_ms: int, advice: str = ""
    ) -> None:
        """`work` is a plural noun for messages; `advice` says what else a refused caller can do."""
        self._work = work
        self._slots_max = slots_max
        self._wait_seconds_max = wait_seconds_max
        self._waiting_max = waiting_max
        self._retry_after_ms = retry_after_ms
        self._advice = advice
        self._running: set[str] = set()  # addresses
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def occupy(self, address: str) -> AsyncIterator[None]:
        """Occupy a slot within the block. Raises ServiceError QUEUE_FULL."""
        if self._is_free_for(address):
            self._running.add(address)
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._leave(address)

    def _is_free_for(self, address: str) -> bool:
        return len(self._running) < self._slots_max and address not in self._running

    async def _wait(self, address: str) -> None:
        """Wait until `_leave` has given the address a slot."""
        self._make_room(address)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = address, turn
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await announce_wait()
                await turn
        except TimeoutError:
            self._give_up(place)
            raise self._refusal() from None
        except BaseException:
            self._give_up(place)
            raise

    def _make_room(self, address: str) -> None:
        """If as many calls wait as may, refuse the newest one of the address with the most.

        Raises ServiceError if that is this address.
        """
        if len(self._waiting) < self._waiting_max:
            return
        counts = Counter([waiting for waiting, _ in self._waiting])
        counts[address] += 1
        largest = max(counts, key=lambda one: (counts[one], one == address))
        place = next((one for one in reversed(self._waiting) if one[0] == largest), None)
        if largest == address or place is None:
            raise self._refusal()
        self._waiting.remove(place)
        if not place[1].done():
            place[1].set_exception(self._refusal())

    def _give_up(self, place: tuple[str, asyncio.Future[None]]) -> None:
        address, turn = place
        if place in self._waiting:
            self._waiting.remove(place)
        elif turn.done() and not turn.cancelled() and turn.exception() is None:
            self._leave(address)  # the slot came at the same moment

    def _leave(self, address: str) -> None:
        self._running.discard(address)
        while (place := self._next(address)) is not None:
            self._waiting.remove(place)
            self._running.add(place[0])
            place[1].set_result(None)

    def _next(self, last: str) -> tuple[str, asyncio.Future[None]] | None:
        """Return who gets the next slot: the first that waits, but `last` only if it waits alone."""
        able = [place for place in self._waiting if self._is_free_for(place[0]) and not place[1].done()]
        return min(able, key=lambda place: place[0] == last, default=None)

    def _refusal(self) -> ServiceError:
        message = f"{self._work} are limited to {self._slots_max} at once, and 1 for each address; try again{self._advice}"
        return ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=self._retry_after_ms)


def replay_slots() -> Slots:
    """Return the slots of replays and simulations."""
    return Slots(
        "replays and simulations", REPLAYS_MAX, retry_after_ms=REPLAY_RETRY_AFTER_MS, advice=", or replay offline with gavel replay"
    )


def digest_slots() -> Slots:
    """Return the slot of digests of projections."""
    return Slots(
        "digests of projections",
        DIGESTS_MAX,
        wait_seconds_max=SCAN_WAIT_SECONDS_MAX,
        waiting_max=SCANS_WAITING_MAX,
        retry_after_ms=SCAN_RETRY_AFTER_MS,
    )


def wide_subject_slots() -> Slots:
    """Return the slots of pages of the projections of wide subjects."""
    return Slots(
        "reads of subjects with many keys",
        WIDE_SUBJECTS_MAX,
        wait_seconds_max=SCAN_WAIT_SECONDS_MAX,
        waiting_max=SCANS_WAITING_MAX,
        retry_after_ms=SCAN_RETRY_AFTER_MS,
    )


def scan_slots() -> Slots:
    """Return the slots of reads that go through the log."""
    return Slots(
        "scans of the log",
        SCANS_MAX,
        wait_seconds_max=SCAN_WAIT_SECONDS_MAX,
        waiting_max=SCANS_WAITING_MAX,
        retry_after_ms=SCAN_RETRY_AFTER_MS,
    )
