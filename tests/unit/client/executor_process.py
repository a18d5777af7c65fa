"""An executor as a process of its own, for tests that kill it: argv is target, Redis URL, bus, min_idle_ms, lease_ms.

It says "begun" on stdout once its handler runs, and never ends by itself.
"""

from __future__ import annotations

import asyncio
import sys

from gavel_client.client import GavelClient
from gavel_client.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("refund.create")
async def hang(context: ExecutionContext) -> HandlerResult:
    """Say that it has begun, and hang."""
    print("begun", context.attempt, flush=True)
    await asyncio.sleep(3600)
    raise AssertionError("not reached")


async def main() -> None:
    """Run the executor until it is killed."""
    target, redis_url, bus, min_idle_ms, lease_ms = sys.argv[1:]
    async with GavelClient(target, bus=bus) as client:
        executor = Executor(client, redis_url, handlers, producer_id="doomed", min_idle_ms=int(min_idle_ms), lease_ms=int(lease_ms))
        await executor.run()


asyncio.run(main())
