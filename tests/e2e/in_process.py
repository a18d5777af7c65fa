"""A sequencer in the test's own process, on real Redis, for tests that set its clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gavel.v1 import fact_pb2
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_server.bus.sequencer import Sequencer
from gavel_server.log.redis.log import RedisLog
from gavel_server.process.clock import GuardedClock


@asynccontextmanager
async def run_sequencer(redis_url: str, bus: str, clock: GuardedClock) -> AsyncIterator[Sequencer]:
    """Run a sequencer as a server does."""
    log = await RedisLog.connect(redis_url, bus)
    always = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
    sequencer = Sequencer(log, clock, cross_check=always, idempotency_window_ms=IDEMPOTENCY_WINDOW_MS_DEFAULT)
    try:
        await sequencer.start()
        yield sequencer
    finally:
        await sequencer.stop()
        await log.close()
