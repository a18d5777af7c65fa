"""The lease of an attempt: its renewal, and the moment from which it is no longer safe.

The lease is measured on this process's monotonic clock from the moment before the request. Neither a difference between clocks nor a slow
response makes it longer here than on the server. It is given up early, because the handler needs time to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from gavel.v1.common_pb2 import Producer
from gavel.v1.execution_service_pb2 import ExecutionStarted

from gavel_client.rpc.backoff import is_transient, try_once
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, describe_error

# Fractions of the lease: the interval of renewals, the pause after a failed renewal, and the time reserved for the handler to stop.
RENEWAL_FRACTION: Final = 1 / 3
RETRY_FRACTION: Final = 1 / 20
STOP_FRACTION: Final = 1 / 10

_logger = logging.getLogger(__name__)


async def keep_alive(client: GavelClient, started: ExecutionStarted, producer: Producer, lease_ms: int, requested_at: float) -> None:
    """Renew the lease of `started` until cancelled. Return when it is lost (refused, or about to lapse) or in doubt.

    `requested_at` is the time.monotonic() before the BeginExecution with `lease_ms`. The function raises nothing: the attempt
    stops when it returns, and no caller would see an exception.
    """
    try:
        await _renew_until_lost(client, started, producer, lease_ms, requested_at)
    except Exception:
        decision_id = started.decision.decision.decision_id
        _logger.exception(
            "decision=%s execution=%s lease in doubt: the renewal failed unexpectedly; the attempt is given up",
            decision_id,
            started.execution_id,
        )


async def _renew_until_lost(client: GavelClient, started: ExecutionStarted, producer: Producer, lease_ms: int, requested_at: float) -> None:
    decision_id = started.decision.decision.decision_id
    lease_seconds = lease_ms / 1000
    renew_at = requested_at + lease_seconds * RENEWAL_FRACTION
    usable_until = requested_at + lease_seconds * (1 - STOP_FRACTION)
    failure: GavelError | None = None
    while True:
        await asyncio.sleep(max(0.0, min(renew_at, usable_until) - time.monotonic()))
        requested_at = time.monotonic()
        if requested_at >= usable_until:
            reason = describe_error(failure) if failure else "this process had no time to renew it; does a handler block the event loop?"
            _logger.error("decision=%s execution=%s lease lost: %s", decision_id, started.execution_id, reason)
            return
        try:
            await try_once(
                partial(
                    client.renew_execution,
                    decision_id,
                    started.execution_id,
                    producer=producer,
                    lease_ms=lease_ms,
                    timeout_ms=max(1, int((usable_until - requested_at) * 1000)),
                )
            )
        except GavelError as error:
            if not is_transient(error):
                _logger.error("decision=%s execution=%s lease refused: %s", decision_id, started.execution_id, describe_error(error))
                return
            failure = error
            renew_at = time.monotonic() + lease_seconds * RETRY_FRACTION
        else:
            failure = None
            renew_at = requested_at + lease_seconds * RENEWAL_FRACTION
            usable_until = requested_at + lease_seconds * (1 - STOP_FRACTION)
