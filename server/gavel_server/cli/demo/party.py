"""A party of the demo: a process that speaks with its own token, and says what it reads from its stdin.

A line holds an event for the log as base64, or `run` and `stop` for an executor. The answer is a line: the recorded event or the decision
as base64, `done`, or `error` and why.
"""

from __future__ import annotations

import asyncio
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError
from gavel_client.executor.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers
from gavel_client.rpc.errors import describe_error

ACTION: Final = "refund.create"


async def main(name: str, address: str, bus: str, token: str) -> None:
    """Answer lines until stdin ends."""
    handlers = Handlers()
    handlers.action(ACTION)(_create_refund)
    executor: Executor | None = None
    running: asyncio.Task[None] | None = None
    async with GavelClient(address, bus=bus, credentials=token) as client:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if line == "run":
                executor = Executor(client, handlers, producer_id=name, producer_version="demo")
                running = asyncio.create_task(executor.run())
                answer = "done"
            elif line == "stop" and executor is not None and running is not None:
                executor.stop()
                await running
                answer = "done"
            else:
                answer = await _say(client, Envelope.FromString(b64decode(line)))
            print(answer, flush=True)


async def _say(client: GavelClient, envelope: Envelope) -> str:
    try:
        if envelope.HasField("proposal"):
            recorded = (await client.submit_proposal(envelope)).decision
        else:
            recorded = (await client.publish_event(envelope)).envelope
    except GavelError as error:
        return f"error {describe_error(error)}"
    return b64encode(recorded.SerializeToString()).decode()


async def _create_refund(context: ExecutionContext) -> HandlerResult:
    """Stand in for a call to a payment provider, which would get the idempotency key."""
    return HandlerResult.success({"refund_id": f"refund-{context.idempotency_key[:8]}", "refunded": context.params["amount"]})


if __name__ == "__main__":
    party, server, bus_name, token_file = sys.argv[1:]
    asyncio.run(main(party, server, bus_name, Path(token_file).read_text()))
