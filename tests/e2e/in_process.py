"""A sequencer in the test's own process, on real Redis, for tests that set its clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gavel.v1 import fact_pb2
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_server.bus.sequencer import Sequencer
from gavel_server.log import Entry, Head
from gavel_server.log.redis.log import RedisLog
from gavel_server.process.clock import GuardedClock


class UncheckedLog(RedisLog):
    """A log that takes any date, as a Redis whose clock is as wrong as the server's."""

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """See EventLog."""
        await super().append(expected, entries, recorded_at_ms, idempotency_keys)


@asynccontextmanager
async def run_sequencer(redis_url: str, bus: str, clock: GuardedClock, log_type: type[RedisLog] = RedisLog) -> AsyncIterator[Sequencer]:
    """Run a sequencer as a server does."""
    log = await log_type.connect(redis_url, bus)
    always = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
    sequencer = Sequencer(log, clock, cross_check=always, idempotency_window_ms=IDEMPOTENCY_WINDOW_MS_DEFAULT)
    try:
        await sequencer.start()
        yield sequencer
    finally:
        await sequencer.stop()
        await log.close()
