"""A handler that never returns, for executors that are killed."""

from __future__ import annotations

import asyncio

from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("parcel.send")
async def send(context: ExecutionContext) -> HandlerResult:
    """Wait for ever."""
    await asyncio.Event().wait()
    return HandlerResult.failed("UNREACHABLE")
