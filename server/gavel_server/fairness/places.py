"""Places: how many pieces of work of one kind run at once, and how callers share the room in which others wait.

Each caller has a share of the waiting room, and callers take turns (`fair_queue`). A caller may have several places, unlike the slots of
`work_slots`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from gavel.v1 import error_pb2

from gavel_server.errors import ServiceError
from gavel_server.fairness.fair_queue import TURN_BYTES, FairQueue
from gavel_server.fairness.waiting import announce_wait

Result = TypeVar("Result")


class Places:
    """Places for `places_max` pieces of work. At most `waiting_max` wait; `waiting` says so, as in "documents wait to be compiled"."""

    def __init__(self, waiting: str, places_max: int, *, waiting_max: int, retry_after_ms: int) -> None:
        self._sentence: Final = f"{waiting_max} {waiting}, which is the limit, and the caller has used its share; try again"
        self._places_max: Final = places_max
        self._retry_after_ms: Final = retry_after_ms
        self._running = 0
        self._work: Final[set[asyncio.Task[Any]]] = set()
        self._waiting: Final[FairQueue[asyncio.Future[None]]] = FairQueue(waiting_max, waiting_max * TURN_BYTES)

    @asynccontextmanager
    async def occupy(self, caller: str, *, announces: bool = True) -> AsyncIterator[None]:
        """Occupy a place within the block, once there is one. Raises ServiceError QUEUE_FULL.

        `announces`: let the native front know of a wait, which sends the headers of the call.
        """
        await self._enter(caller, announces)
        try:
            yield
        finally:
            self._leave()

    async def run(self, caller: str, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of work that cannot be cancelled, once there is a place for it.

        If the caller goes, the work goes on and occupies its place until it ends: more never runs at once than there are places.
        Raises ServiceError QUEUE_FULL, and what the work raises.
        """
        try:
            await self._enter(caller)
        except BaseException:
            work.close()
            raise
        running = asyncio.create_task(work)
        self._work.add(running)
        running.add_done_callback(self._end)
        return await asyncio.shield(running)

    async def _enter(self, caller: str, announces: bool = True) -> None:
        """Wait for a place and occupy it. `announces`: see `occupy`."""
        if self._running < self._places_max:
            self._running += 1
            return
        displaced = self._waiting.make_room(caller)
        if displaced is None:
            raise self._refusal()
        for place in displaced:
            if not place.done():  # its caller has been cancelled, and has not had its turn since
                place.set_exception(self._refusal())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(caller, turn, TURN_BYTES)
        try:
            if announces:
                await announce_wait()
            await turn
        except BaseException:
            if not turn.done() or turn.cancelled():
                self._waiting.remove(caller, turn)
            elif turn.exception() is None:
                self._leave()  # the place came at the same moment
            raise

    def _end(self, running: asyncio.Task[Any]) -> None:
        self._work.discard(running)
        if not running.cancelled():
            running.exception()  # its caller may have gone
        self._leave()

    def _leave(self) -> None:
        """Give the place to the next caller that still waits."""
        while self._waiting.count:
            turn = self._waiting.take()
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1

    def _refusal(self) -> ServiceError:
        return ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, self._sentence, retry_after_ms=self._retry_after_ms)
