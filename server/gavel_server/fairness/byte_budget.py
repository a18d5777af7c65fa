"""A budget of memory that many streams share: how many bytes they hold at once, in all and for each address.

A stream reserves the most that it may need before it reads, and gives back the rest once it knows. A stream that waits holds nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Reservation:
    """Bytes of a budget that one stream holds."""

    def __init__(self, budget: ByteBudget, address: str, size_bytes: int) -> None:
        self._budget = budget
        self._address = address
        self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Give back all but `size_bytes`."""
        if size_bytes < self.size_bytes:
            self._budget.release(self._address, self.size_bytes - size_bytes)
            self.size_bytes = size_bytes


class ByteBudget:
    """At most `bytes_max` at once, and `address_bytes_max` for each address.

    Reservations wait in the order in which they came; one that does not fit lets later ones pass.
    """

    def __init__(self, bytes_max: int, address_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._address_bytes_max = address_bytes_max
        self._of_address: Counter[str] = Counter()
        self._bytes = 0
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    @asynccontextmanager
    async def reserve(self, address: str, size_bytes: int) -> AsyncIterator[Reservation]:
        """Hold bytes within the block, once there is room. `size_bytes` must not exceed the limits."""
        await self._take(address, size_bytes)
        reservation = Reservation(self, address, size_bytes)
        try:
            yield reservation
        finally:
            reservation.shrink(0)

    def release(self, address: str, size_bytes: int) -> None:
        """Give back bytes of an address to the reservations that wait."""
        self._bytes -= size_bytes
        self._of_address[address] -= size_bytes
        if not self._of_address[address]:
            del self._of_address[address]
        for turn, (waiting, wanted_bytes) in list(self._waiting.items()):
            if not turn.cancelled() and self._has_room(waiting, wanted_bytes):
                del self._waiting[turn]
                self._add(waiting, wanted_bytes)
                turn.set_result(None)

    async def _take(self, address: str, size_bytes: int) -> None:
        if self._has_room(address, size_bytes):
            self._add(address, size_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = address, size_bytes
        try:
            await turn
        except BaseException:
            if self._waiting.pop(turn, None) is None:
                self.release(address, size_bytes)  # the bytes came at the same moment
            raise

    def _has_room(self, address: str, size_bytes: int) -> bool:
        return self._bytes + size_bytes <= self._bytes_max and self._of_address[address] + size_bytes <= self._address_bytes_max

    def _add(self, address: str, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._of_address[address] += size_bytes
