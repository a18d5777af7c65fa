"""The items of the work queues that belong to the live decisions of a bus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_APPROVED,
    PENDING_PHASE_AWAITING_FACTS,
    PENDING_PHASE_EXECUTING,
)
from gavel_rules.state.records import LiveDecision

from gavel_server.fairness.turns import call_slice
from gavel_server.log.work.protocol import QUEUES, QueueName, WorkQueues

# Decisions that are looked up in one step, and in one call; numbers of a queue that are read in one.
STEP_DECISIONS = 500  # not Final: tests change it
CALL_STEPS = 20  # not Final: tests change it
STEP_NUMBERS: Final = 1_000


class LostWork(NamedTuple):
    """Decisions whose items the queues do not hold."""

    decisions: list[LiveDecision]
    examined: int
    """Sequence number of the last decision that was looked up, if others follow it, else 0."""


def decision_number(live: LiveDecision) -> int:
    """Return the number of a decision's item in the queue of decisions: its own, or that of the DECISION that granted one more attempt."""
    return live.sequence_number if live.grant is None else live.grant.sequence_number


async def find_lost(
    work: WorkQueues, decisions: Iterable[LiveDecision], current: Mapping[str, LiveDecision], count: int, caller: str
) -> LostWork:
    """Return those of the first decisions whose items the queues do not hold, at least `count` if there are as many. Raises LogError.

    An item is added in the same step as its event, and removed when its work has ended: one that is missing was lost with its queue.
    A decision that differs in `current`, by decision_id, after the queues were read has changed meanwhile, and is left out. A bus may
    have hundreds of thousands of live decisions: they are looked up in steps, and in one call only so many. The steps of all callers
    take turns.
    """
    time_slice = call_slice(STEP_DECISIONS, caller)
    lost: list[LiveDecision] = []
    remaining = iter(decisions)
    for _ in range(CALL_STEPS):
        step = list(islice(remaining, STEP_DECISIONS))
        missing = {queue: await _missing(work, queue, step) for queue in QUEUES}
        lost += [
            one
            for one in step
            if current.get(one.decision_id) is one and any(not missing[queue].isdisjoint(_numbers(one, queue)) for queue in QUEUES)
        ]
        if len(step) < STEP_DECISIONS:
            return LostWork(lost, 0)
        if len(lost) >= count:
            break
        await time_slice.spend(len(step))
    return LostWork(lost, step[-1].sequence_number)


async def _missing(work: WorkQueues, queue: QueueName, decisions: Iterable[LiveDecision]) -> set[int]:
    """Return the numbers of those items of decisions that a queue does not hold."""
    missing = {number for live in decisions for number in _numbers(live, queue)}
    if missing:
        after, last = min(missing) - 1, max(missing)
        while after < last and (page := await work.numbers(queue, after, STEP_NUMBERS)):
            missing.difference_update(page)
            after = page[-1]
    return missing


def _numbers(live: LiveDecision, queue: QueueName) -> list[int]:
    """Return the numbers of the items in a queue that lead a decision to its next step. A person is not led by a queue."""
    if queue == "decisions" and live.phase in (PENDING_PHASE_APPROVED, PENDING_PHASE_EXECUTING):
        return [decision_number(live)]
    if queue == "executions" and live.phase == PENDING_PHASE_AWAITING_FACTS:
        return [fact.execution.sequence_number for fact in live.awaited_facts]
    return []
