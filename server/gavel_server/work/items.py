"""The items of the work queues that belong to the live decisions of a bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_APPROVED,
    PENDING_PHASE_AWAITING_FACTS,
    PENDING_PHASE_EXECUTING,
)
from gavel_rules.state.records import LiveDecision

from gavel_server.log.work.protocol import QUEUES, QueueName, WorkQueues

# Numbers of a queue that are read in one step.
STEP_NUMBERS: Final = 1_000


def decision_number(live: LiveDecision) -> int:
    """Return the number of a decision's item in the queue of decisions: its own, or that of the DECISION that granted one more attempt."""
    return live.sequence_number if live.grant is None else live.grant.sequence_number


async def find_lost(work: WorkQueues, decisions: Sequence[LiveDecision]) -> set[str]:
    """Return the decision_ids of those decisions whose items the queues do not hold. Raises LogError.

    An item is added in the same step as its event, and removed when its work has ended: one that is missing was lost with its queue.
    """
    lost: set[str] = set()
    for queue in QUEUES:
        missing: dict[int, str] = {}
        for live in decisions:
            missing |= dict.fromkeys(_numbers(live, queue), live.decision_id)
        if not missing:
            continue
        after, last = min(missing) - 1, max(missing)
        while after < last and (page := await work.numbers(queue, after, STEP_NUMBERS)):
            for number in page:
                missing.pop(number, None)
            after = page[-1]
        lost.update(missing.values())
    return lost


def _numbers(live: LiveDecision, queue: QueueName) -> list[int]:
    """Return the numbers of the items in a queue that lead a decision to its next step. A person is not led by a queue."""
    if queue == "decisions" and live.phase in (PENDING_PHASE_APPROVED, PENDING_PHASE_EXECUTING):
        return [decision_number(live)]
    if queue == "executions" and live.phase == PENDING_PHASE_AWAITING_FACTS:
        return [fact.execution.sequence_number for fact in live.awaited_facts]
    return []
