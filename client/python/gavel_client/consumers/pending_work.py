"""Pending work whose queue entry is lost.

A queue may lose entries: its Redis restarts without them, or an operator trims it. A consumer whose queue has no new entry
therefore asks the server from time to time for pending decisions whose entry the queue does not hold. One of them is lost if nothing
has happened to it since the scan before. The queue still holds parked and discarded entries: they wait for an operator.
Several consumers may find the same decision; that is harmless, because only the server decides what is to be done.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from gavel.v1.projection_service_pb2 import PendingDecision, PendingPhase

from gavel_client.consumers.consumer import Consumer
from gavel_client.rpc.backoff import is_unopened_bus
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.rpc.paging import pages

# Interval of scans; jitter removes up to half, so that consumers do not scan at the same time.
SCAN_INTERVAL_MS_DEFAULT: Final = 60_000
_PAGE_SIZE: Final = 1_000

_logger = logging.getLogger(__name__)


class PendingScan(NamedTuple):
    """The result of a scan."""

    first: int
    """Sequence number of the oldest pending decision, or of the next event if none is pending."""
    lost: list[PendingDecision]
    """Decisions whose queue entry seems lost, in random order, because other consumers scan too."""


async def scan_pending(
    client: GavelClient,
    consumer: Consumer,
    phase: PendingPhase.ValueType,
    interval_ms: int,
    has_pending: Callable[[], bool] = lambda: True,
) -> AsyncIterator[PendingScan]:
    """Yield scans of the decisions in `phase`, for ever.

    A scan finds nothing lost while the server is unavailable or the consumer's queue has new entries. A bus that nobody has written
    to has no pending decisions. Nothing is scanned while `has_pending` is False: a server knows that of its own buses.
    """
    covered_before = 0
    is_opened = True
    while True:
        await asyncio.sleep(interval_ms * random.uniform(0.5, 1.0) / 1000)
        if not has_pending():
            continue
        try:
            oldest = await client.list_pending_decisions(page_size=1)
            missing = await _list_missing(client, phase) if consumer.is_drained else []
        except GavelError as error:
            if not is_unopened_bus(error):
                _logger.info("pending decisions cannot be read: %s", describe_error(error))
            elif is_opened:
                is_opened = False
                _logger.info("bus=%s does not exist yet; waiting for the first write to it", client.bus)
            continue
        is_opened = True
        lost = [one for one in missing if one.last_sequence_number <= covered_before]
        random.shuffle(lost)
        covered_before = oldest.projection_version
        yield PendingScan(oldest.decisions[0].sequence_number if oldest.decisions else covered_before + 1, lost)


async def _list_missing(client: GavelClient, phase: PendingPhase.ValueType) -> list[PendingDecision]:
    """Return the pending decisions in `phase` whose entry the queue does not hold."""
    decision_pages = pages(client.list_pending_decisions, phases=[phase], lost_work=True, page_size=_PAGE_SIZE)
    return [one async for page in decision_pages for one in page.decisions]
