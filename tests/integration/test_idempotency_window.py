"""The idempotency window of a bus is the one it was opened with, whatever a later server's setting is."""

from __future__ import annotations

from gavel_server.bootstrap.buses import complete_opening, open_sequencer
from gavel_server.config import load
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs
from gavel_server.process.clock import GuardedClock

DAY_MS = 24 * 60 * 60 * 1000


async def test_the_bus_keeps_its_own_idempotency_window(redis_url: str, bus: str) -> None:
    """A server with another setting applies the bus's window; a shorter one would accept repeated ids that replay refuses."""
    logs = RedisLogs(redis_url)
    for setting in (7, 1, 30):
        settings = load(options={"idempotency_window_days": setting})
        sequencer = await open_sequencer(settings, logs, bus, GuardedClock())
        await complete_opening(sequencer)
        log = sequencer.log
        assert isinstance(log, RedisLog)
        assert 7 * DAY_MS == log.idempotency_window_ms
        await sequencer.stop()
    await logs.close()
