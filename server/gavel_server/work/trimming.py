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
from gavel_server.process.time_slice import TimeSlice
from gavel_server.work.items import decision_number

TRIM_SECONDS: Final = 10.0
# Entries that are examined in one step, and in one round of a queue.
STEP_ENTRIES: Final = 500
ROUND_ENTRIES_MAX: Final = 20_000

# The phases in which an executor still has something to do. After a review, one more attempt is a new entry.
_EXECUTABLE: Final = frozenset({PENDING_PHASE_APPROVED, PENDING_PHASE_EXECUTING})

_LOG: Final = structlog.get_logger(__name__)


async def trim_forever(sequencers: Callable[[], Iterable[Sequencer]]) -> None:
    """Trim the queues of all open buses, for ever."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        for sequencer in list(sequencers()):
            try:
                await trim(sequencer)
            except (LogError, ServiceError) as error:
                _LOG.info("work.not_trimmed", bus=sequencer.bus, problem=str(error))


async def trim(sequencer: Sequencer) -> None:
    """Trim the queues of one bus. Raises LogError, ServiceError."""
    await _trim_decisions(sequencer)
    await _trim_executions(sequencer)


async def _trim_decisions(sequencer: Sequencer) -> None:
    work = sequencer.log.work
    if not await work.numbers("decisions", 0, 1):
        return
    state = await sequencer.confirmed_state()
    # Without a pause: the state that is read is committed. What ends later is left for the next round.
    head, decisions = state.head, list(state.decisions.values())
    live: set[int] = set()
    time_slice = TimeSlice(STEP_ENTRIES)
    for decision in decisions:  # there may be hundreds of thousands
        if decision.phase in _EXECUTABLE:
            live.add(decision_number(decision))
        if time_slice.is_over(1):
            await time_slice.end()
    after = examined = 0
    while examined < ROUND_ENTRIES_MAX and (numbers := await work.numbers("decisions", after, STEP_ENTRIES)):
        after = numbers[-1]
        examined += len(numbers)
        ended = [number for number in numbers if number <= head and number not in live]
        if ended:
            await work.remove("decisions", ended)


async def _trim_executions(sequencer: Sequencer) -> None:
    work = sequencer.log.work
    time_slice = TimeSlice(STEP_ENTRIES)
    after = examined = 0
    while examined < ROUND_ENTRIES_MAX and (numbers := await work.numbers("executions", after, STEP_ENTRIES)):
        after = numbers[-1]
        examined += len(numbers)
        records = await sequencer.log.read_many(numbers)
        decisions: dict[int, str] = {}
        for number, record in records.items():
            decisions[number] = Envelope.FromString(record.envelope).execution.decision_id
            await time_slice.spend(1)
        ended = _ended_executions(await sequencer.confirmed_state(), numbers, decisions)
        if ended:
            await work.remove("executions", ended)


def _ended_executions(state: State, numbers: list[int], decisions: dict[int, str]) -> list[int]:
    """Return the executions of decisions that do not live any more, and those that the log does not hold."""
    return [number for number in numbers if number <= state.head and decisions.get(number, "") not in state.decisions]
