"""A handler that succeeds in part, and the handler of its compensation."""

from __future__ import annotations

from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("parcel.send")
async def send(context: ExecutionContext) -> HandlerResult:
    """Take the parcel from the depot, but no further."""
    return HandlerResult.partial(["fetched"], "ROAD_CLOSED", "no way on", {"weight": context.params["weight"], "stranded": "crossroads"})


@handlers.action("parcel.recall")
async def recall(context: ExecutionContext) -> HandlerResult:
    """Bring the parcel back from where it is."""
    assert context.decision.decision.compensates_decision_id
    return HandlerResult.success({"brought_from": context.params["from"]})
