"""What the server says is pending, for a consumer whose work queue may have lost it.

A queue may lose entries: its Redis comes back without them, or somebody trims it. So a consumer whose queue has nothing new
looks once in a while at what waits for somebody like it, and takes up what has waited since it looked before: whatever had an
entry then has been delivered since. That is a guess, and others guess alike; it must be harmless to do a thing twice. It is,
because the server is the only judge of what there is to do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from gavel.v1.projection_service_pb2 import PendingDecision, PendingPhase

from gavel_client.client import GavelClient
from gavel_client.consumer import Consumer
from gavel_client.errors import GavelError, where_and_what
from gavel_client.paging import pages

# How often to look, at most: chance takes away up to half, so that not all look at once.
LOOK_INTERVAL_MS_DEFAULT: Final = 60_000
_PAGE_SIZE: Final = 1_000

_logger = logging.getLogger(__name__)


class Look(NamedTuple):
    """What was seen: the number of the oldest decision that has not come to its end (of the next event, if there is none), and
    the decisions that the queue seems to have lost, in any order, for others look too."""

    first: int
    lost: list[PendingDecision]


async def looks(client: GavelClient, consumer: Consumer, phase: PendingPhase.ValueType, interval_ms: int) -> AsyncIterator[Look]:
    """Look for ever at what waits in `phase`. While the server is away, or the consumer's queue has more for it, nothing is lost."""
    waited: set[str] = set()
    while True:
        await asyncio.sleep(interval_ms * random.uniform(0.5, 1.0) / 1000)
        try:
            first, waiting = await _pending(client, phase)
        except GavelError as error:
            _logger.info("what is pending cannot be read now: %s", where_and_what(error))
            continue
        lost = [one for one in waiting if one.decision_id in waited] if consumer.drained else []
        random.shuffle(lost)
        waited = {one.decision_id for one in waiting}
        yield Look(first, lost)


async def _pending(client: GavelClient, phase: PendingPhase.ValueType) -> tuple[int, list[PendingDecision]]:
    first = 0
    waiting: list[PendingDecision] = []
    async for page in pages(client.list_pending_decisions, page_size=_PAGE_SIZE):
        if page.decisions and not first:
            first = page.decisions[0].sequence_number
        waiting.extend(one for one in page.decisions if one.phase == phase)
        last_known = page.projection_version
    return first or last_known + 1, waiting
