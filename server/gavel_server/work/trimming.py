"""Removes entries from the work queues whose decisions have ended in the log, however executors got them.

The state of the bus tells which decisions live. An entry of a later event than the state knows is left for the next round. Requests are
not trimmed here: nothing ends them, and the queue keeps REQUESTS_MAX.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import PENDING_PHASE_APPROVED, PENDING_PHASE_EXECUTING
from gavel_rules.state.state import State

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import LogError
from gavel_server.log.work.protocol import QueueName
from gavel_server.process.time_slice import TimeSlice
from gavel_server.work.items import decision_number

TRIM_SECONDS: Final = 10.0
# Entries that are examined in one round of a queue.
ROUND_ENTRIES_MAX: Final = 20_000
# Entries that are examined in one step, by their numbers alone.
STEP_ENTRIES: Final = 500
# Events that are read at once. Each may have 1 MiB.
READ_EVENTS_MAX: Final = 32

# The phases in which an executor still has something to do. After a review, one more attempt is a new entry.
_EXECUTABLE: Final = frozenset({PENDING_PHASE_APPROVED, PENDING_PHASE_EXECUTING})

_LOG: Final = structlog.get_logger(__name__)


async def trim_forever(sequencers: Callable[[], Iterable[Sequencer]]) -> None:
    """Trim the queues of all open buses, for ever."""
    trimmers: dict[Sequencer, QueueTrimmer] = {}
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        trimmers = {one: trimmers.get(one) or QueueTrimmer(one) for one in sequencers()}
        for trimmer in trimmers.values():
            await trimmer.run_round()


class QueueTrimmer:
    """Trims the queues of one bus, a round at a time.

    A round goes on after the entries that were examined last, and after the end of a queue at its start: neither live entries nor events
    that cannot be read hide the entries behind them.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer: Final = sequencer
        self._places: dict[QueueName, int] = {}  # the number of the last entry that was examined
        self._has_failed = False

    async def run_round(self) -> None:
        """Trim the queues, and log a failure, a repeated one as a warning."""
        begins_at_start = not any(self._places.values())
        try:
            await self.trim()
            if begins_at_start:  # a round that begins behind an event that cannot be read proves nothing
                self._has_failed = False
        except (LogError, ServiceError) as error:
            log = _LOG.warning if self._has_failed else _LOG.info
            log("work.not_trimmed", bus=self._sequencer.bus, problem=str(error), note="it is tried again")
            self._has_failed = True

    async def trim(self) -> None:
        """Examine up to ROUND_ENTRIES_MAX entries of each queue, and remove the ended ones. Raises LogError, ServiceError."""
        await self._trim_decisions()
        await self._trim_executions()

    async def _trim_decisions(self) -> None:
        work = self._sequencer.log.work
        if not await work.numbers("decisions", 0, 1):
            self._places["decisions"] = 0
            return
        state = await self._sequencer.confirmed_state()
        # Without a pause: the state that is read is committed. What ends later is left for the next round.
        head, decisions = state.head, list(state.decisions.values())
        live: set[int] = set()
        time_slice = TimeSlice(STEP_ENTRIES)
        for decision in decisions:  # there may be hundreds of thousands
            if decision.phase in _EXECUTABLE:
                live.add(decision_number(decision))
            if time_slice.is_over(1):
                await time_slice.end()
        examined = 0
        while examined < ROUND_ENTRIES_MAX and (numbers := await self._next_entries("decisions", STEP_ENTRIES)):
            examined += len(numbers)
            ended = [number for number in numbers if number <= head and number not in live]
            if ended:
                await work.remove("decisions", ended)

    async def _trim_executions(self) -> None:
        log = self._sequencer.log
        time_slice = TimeSlice(STEP_ENTRIES)
        examined = 0
        while examined < ROUND_ENTRIES_MAX and (numbers := await self._next_entries("executions", READ_EVENTS_MAX)):
            examined += len(numbers)
            records = await log.read_many(numbers)
            decisions: dict[int, str] = {}
            for number, record in records.items():
                decisions[number] = Envelope.FromString(record.envelope).execution.decision_id
                await time_slice.spend(1)
            ended = _ended_executions(await self._sequencer.confirmed_state(), numbers, decisions)
            if ended:
                await log.work.remove("executions", ended)

    async def _next_entries(self, queue: QueueName, count: int) -> list[int]:
        """Return up to `count` entries after those of the last call; at the end of the queue [], and then its first ones again."""
        numbers = await self._sequencer.log.work.numbers(queue, self._places.get(queue, 0), count)
        self._places[queue] = numbers[-1] if numbers else 0
        return numbers


def _ended_executions(state: State, numbers: list[int], decisions: dict[int, str]) -> list[int]:
    """Return the executions of decisions that do not live any more, and those that the log does not hold."""
    return [number for number in numbers if number <= state.head and decisions.get(number, "") not in state.decisions]
