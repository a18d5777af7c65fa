"""An executor as a process of its own that claims soon what another has left behind: `gavel executor` waits half a minute for that.

It also looks soon for what its queue has lost. Arguments: HANDLERS.py SERVER REDIS_URL BUS NAME LEASE_MS MIN_IDLE_MS LOOK_INTERVAL_MS.
Ends well on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from gavel_client import GavelClient
from gavel_client.executor import Executor
from gavel_server.cli.consuming import load_handlers


async def main(handlers: str, server: str, redis_url: str, bus: str, name: str, *milliseconds: str) -> None:
    """Carry out decisions until SIGTERM."""
    async with GavelClient(server, bus=bus) as client:
        lease_ms, min_idle_ms, look_interval_ms = map(int, milliseconds)
        executor = Executor(
            client,
            redis_url,
            load_handlers(handlers),
            producer_id=name,
            lease_ms=lease_ms,
            min_idle_ms=min_idle_ms,
            look_interval_ms=look_interval_ms,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, executor.stop)
        await executor.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
