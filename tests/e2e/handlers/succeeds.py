"""A handler that succeeds."""

from __future__ import annotations

from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("parcel.send")
async def send(context: ExecutionContext) -> HandlerResult:
    """Send the parcel."""
    return HandlerResult.success({"weight": context.params["weight"], "attempt": context.attempt})
