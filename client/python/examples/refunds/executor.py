"""The executor of the example: it pays approved refunds.

gavel executor client/python/examples/refunds/executor.py --producer-id refunds-executor --token-file refunds-executor.token
"""

from __future__ import annotations

from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

handlers = Handlers()


@handlers.action("refund.create")
async def create_refund(context: ExecutionContext) -> HandlerResult:
    """Pay a refund; a payment provider gets context.idempotency_key, so that it pays once."""
    return HandlerResult.success({"refunded": context.params["amount"]})
