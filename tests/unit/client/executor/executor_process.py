"""An executor in a process of its own, for tests that kill it. Arguments: TARGET REDIS_URL BUS MIN_IDLE_MS LEASE_MS.

It prints "begun" once its handler runs, and never ends by itself.
"""

from __future__ import annotations

import asyncio
import sys

from gavel_client.executor.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers
from gavel_client.rpc.client import GavelClient

handlers = Handlers()


@handlers.action("refund.create")
async def hang(context: ExecutionContext) -> HandlerResult:
    """Print that the attempt has begun, then hang."""
    print("begun", context.attempt, flush=True)
    await asyncio.sleep(3600)
    raise AssertionError("not reached")


async def main() -> None:
    """Run the executor until it is killed."""
    target, redis_url, bus, min_idle_ms, lease_ms = sys.argv[1:]
    async with GavelClient(target, bus=bus) as client:
        executor = Executor(
            client, handlers, redis_url=redis_url, producer_id="doomed", min_idle_ms=int(min_idle_ms), lease_ms=int(lease_ms)
        )
        await executor.run()


asyncio.run(main())
