"""How long a bus remembers event_ids is what it was opened with, whatever a server is started with later."""

from __future__ import annotations

from gavel_server.bootstrap import open_sequencer
from gavel_server.clock import GuardedClock
from gavel_server.config import load
from gavel_server.log.redis import RedisLog

DAY_MS = 24 * 60 * 60 * 1000


async def test_the_window_is_the_bus_s_own(redis_url: str, bus: str) -> None:
    """A server with another setting keeps to the bus's window: a shorter one would let ids in again that replay refuses."""
    for setting in (7, 1, 30):
        settings = load(given={"idempotency_window_days": setting})
        sequencer = await open_sequencer(settings, redis_url, bus, GuardedClock())
        log = sequencer.log
        assert isinstance(log, RedisLog)
        assert 7 * DAY_MS == log.idempotency_window_ms
        await sequencer.stop()
        await log.close()
