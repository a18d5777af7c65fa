"""An executor process like `gavel executor`, but with short intervals: it soon takes over entries and scans for lost ones.

Arguments: HANDLERS.py SERVER REDIS_URL BUS NAME LEASE_MS MIN_IDLE_MS SCAN_INTERVAL_MS.
Exits with 0 on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from gavel_client import GavelClient
from gavel_client.executor.executor import Executor
from gavel_server.cli.commands.processes.executor import load_handlers


async def carry_out(handlers: str, server: str, redis_url: str, bus: str, name: str, *milliseconds: str) -> None:
    """Carry out decisions until SIGTERM."""
    async with GavelClient(server, bus=bus) as client:
        lease_ms, min_idle_ms, scan_interval_ms = map(int, milliseconds)
        executor = Executor(
            client,
            load_handlers(handlers),
            redis_url=redis_url,
            producer_id=name,
            lease_ms=lease_ms,
            min_idle_ms=min_idle_ms,
            scan_interval_ms=scan_interval_ms,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, executor.stop)
        await executor.run()


def main() -> None:
    """Run the executor of the arguments."""
    asyncio.run(carry_out(*sys.argv[1:]))
