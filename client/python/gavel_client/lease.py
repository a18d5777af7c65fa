"""Keeping an attempt's lease, and knowing when it can no longer be relied on.

The lease is counted on this process's monotonic clock from the moment *before* it was asked for, so no difference between
clocks and no slow answer can make it look longer here than it is on the server. It is given up a little early: what acts under it
needs time to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from gavel.v1.common_pb2 import Producer
from gavel.v1.execution_service_pb2 import ExecutionStarted

from gavel_client.backoff import may_heal
from gavel_client.client import GavelClient
from gavel_client.errors import GavelError, where_and_what

# As parts of the lease: when it is renewed, when a failed renewal is repeated, and how much of it is left to stop in.
RENEWAL_PART: Final = 1 / 3
REPEAT_PART: Final = 1 / 20
STOPPING_PART: Final = 1 / 10

_logger = logging.getLogger(__name__)


async def keep_lease(client: GavelClient, started: ExecutionStarted, producer: Producer, lease_ms: int, asked_at: float) -> None:
    """Renew the lease of `started` until cancelled. Returns when it is lost (refused, or about to lapse unrenewed) or in doubt.

    `asked_at` is what time.monotonic() said before BeginExecution was called with `lease_ms`. Raises nothing: whoever acts under the
    lease stops when this returns, and nobody would hear an exception.
    """
    try:
        await _renew_until_lost(client, started, producer, lease_ms, asked_at)
    except Exception:
        decision_id = started.decision.decision.decision_id
        _logger.exception(
            "decision=%s execution=%s lease in doubt: renewing it failed in a way that is not foreseen; the attempt is given up",
            decision_id,
            started.execution_id,
        )


async def _renew_until_lost(client: GavelClient, started: ExecutionStarted, producer: Producer, lease_ms: int, asked_at: float) -> None:
    decision_id = started.decision.decision.decision_id
    lease_s = lease_ms / 1000
    renew_at = asked_at + lease_s * RENEWAL_PART
    usable_until = asked_at + lease_s * (1 - STOPPING_PART)
    failed: GavelError | None = None
    while True:
        await asyncio.sleep(max(0.0, min(renew_at, usable_until) - time.monotonic()))
        asked_at = time.monotonic()
        if asked_at >= usable_until:
            why = where_and_what(failed) if failed else "this process did not come to renew it (does a handler block the event loop?)"
            _logger.error("decision=%s execution=%s lease lost: %s", decision_id, started.execution_id, why)
            return
        try:
            await client.renew_execution(
                decision_id,
                started.execution_id,
                producer=producer,
                lease_ms=lease_ms,
                timeout_ms=max(1, int((usable_until - asked_at) * 1000)),
            )
        except GavelError as error:
            if not may_heal(error):
                _logger.error("decision=%s execution=%s lease refused: %s", decision_id, started.execution_id, where_and_what(error))
                return
            failed = error
            renew_at = time.monotonic() + lease_s * REPEAT_PART
        else:
            failed = None
            renew_at = asked_at + lease_s * RENEWAL_PART
            usable_until = asked_at + lease_s * (1 - STOPPING_PART)
