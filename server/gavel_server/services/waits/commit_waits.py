"""Calls that wait for the state of a bus to change: one task for each bus asks all of them after commits.

A coroutine for each call and commit would slow down the commits. The task pauses between two rounds, and a question takes a few lookups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gavel.v1 import error_pb2
from gavel_rules.state.state import State

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import address_of

# Calls that wait on this server, and those of one address.
DECISION_WAITS_MAX: Final = 4_096
CALLER_DECISION_WAITS_MAX: Final = 1_024
DECISION_WAIT_RETRY_AFTER_MS: Final = 1_000
# Between two rounds of questions.
PAUSE_SECONDS: Final = 0.01

Question = Callable[[State], bool]


class CommitWaits:
    """The waiting calls of this server."""

    def __init__(self, *, waits_max: int = DECISION_WAITS_MAX, caller_waits_max: int = CALLER_DECISION_WAITS_MAX) -> None:
        self._waits_max = waits_max
        self._caller_waits_max = caller_waits_max
        self._count_by_address: dict[str, int] = {}
        self._bus_waits: dict[Sequencer, _BusWaits] = {}

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """Occupy a place for a call that may wait. Raises ServiceError QUEUE_FULL."""
        address = address_of(caller)
        count = self._count_by_address.get(address, 0)
        if sum(self._count_by_address.values()) >= self._waits_max or count >= self._caller_waits_max:
            limits = f"{self._waits_max} at once, and to {self._caller_waits_max} for each address"
            message = f"calls that wait for decisions are limited to {limits}; try again"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=DECISION_WAIT_RETRY_AFTER_MS)
        self._count_by_address[address] = count + 1
        try:
            yield
        finally:
            self._count_by_address[address] -= 1
            if not self._count_by_address[address]:
                del self._count_by_address[address]

    async def wait(self, sequencer: Sequencer, question: Question, seconds: float) -> None:
        """Return once the answer in the committed state is yes, or the time is over. Raises ServiceError SHUTTING_DOWN."""
        waits = self._bus_waits.get(sequencer)
        if waits is None:
            waits = self._bus_waits[sequencer] = _BusWaits(sequencer, self._forget)
        future = waits.add(question)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            waits.remove(future)

    def _forget(self, waits: _BusWaits) -> None:
        if self._bus_waits.get(waits.sequencer) is waits:
            del self._bus_waits[waits.sequencer]


class _BusWaits:
    """The waiting calls of one bus. The task runs while there are any; `end` is called when it takes no more."""

    def __init__(self, sequencer: Sequencer, end: Callable[[_BusWaits], None]) -> None:
        self.sequencer: Final = sequencer
        self._end = end
        self._questions: dict[asyncio.Future[None], Question] = {}
        self._running = asyncio.create_task(self._run())

    def add(self, question: Question) -> asyncio.Future[None]:
        """Return a future that is set when the answer is yes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._questions[future] = question
        return future

    def remove(self, future: asyncio.Future[None]) -> None:
        """Forget a call. The task ends with the last one."""
        self._questions.pop(future, None)
        if not self._questions:
            self._end(self)  # at once: a call that joins a cancelled task would wait in vain
            self._running.cancel()

    async def _run(self) -> None:
        try:
            while True:
                state = await self.sequencer.settled_state()
                head = state.head
                for future, question in list(self._questions.items()):
                    if not future.done() and question(state):
                        future.set_result(None)
                await asyncio.sleep(PAUSE_SECONDS)
                await self.sequencer.wait_beyond(head)
        except Exception as error:  # noqa: BLE001  # every call that waits gets it
            for future in self._questions:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._end(self)
