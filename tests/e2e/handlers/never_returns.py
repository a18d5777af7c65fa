"""A courier who sets out and is never seen again: whoever runs him is killed meanwhile."""

from __future__ import annotations

import asyncio

from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("parcel.send")
async def send(context: ExecutionContext) -> HandlerResult:
    """Set out with the parcel."""
    await asyncio.Event().wait()
    return HandlerResult.failed("UNREACHABLE")
