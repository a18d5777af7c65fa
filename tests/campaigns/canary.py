"""A well-behaved caller beside others: `python -m tests.campaigns.canary HOST:PORT SECONDS`.

It publishes a fact, proposes, reads a projection and asks for health, ten rounds a second, each on a connection of its own, and prints as
JSON its errors, the slowest one in a hundred of each call in milliseconds, and the event_ids that were accepted.

It calls from CANARY_HOST, since strangers on a network have other addresses than a well-behaved caller, and the server shares out what is
scarce by address first. gRPC's clients cannot choose where they call from, so a relay in this program does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import grpc
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel_client import GavelClient, GavelError

from tests.e2e.world import proposal, publish_status

# Of this machine, as all of 127.0.0.0/8 on Linux. The attackers call from 127.0.0.1.
CANARY_HOST: Final = "127.0.0.2"
RELAY_BYTES: Final = 64 * 1024
ROUND_SECONDS: Final = 0.1
CALL_SECONDS_MAX: Final = 5.0
# Of all its proposals. Nothing that others propose in it may send one to a review.
TRACE: Final = "canary"


class Canary:
    """The calls, their times and their errors."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self.accepted: list[str] = []

    async def run(self, address: str, seconds: float) -> None:
        """Make the calls for `seconds`."""
        async with AsyncExitStack() as stack:
            writer, reader = [await stack.enter_async_context(GavelClient(address)) for _ in range(2)]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            end, number = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                number += 1
                started = time.monotonic()
                subject = f"parcel/canary-{os.getpid()}-{number}"  # nobody else has a decision on it
                fact = await self._timed("publish", publish_status(writer, [subject]))
                if fact is not None:
                    envelope = proposal(fact[subject])
                    self.accepted.append(fact[subject].event_id)
                    envelope.trace_id = TRACE
                    answer = await self._timed("submit", writer.submit_proposal(envelope, timeout_ms=int(CALL_SECONDS_MAX * 1000)))
                    if answer is not None:
                        self.accepted.append(envelope.event_id)
                        outcome = answer.decision.decision.outcome
                        if outcome != OUTCOME_APPROVED:
                            self.errors.append(f"a proposal has outcome {outcome}: {answer.decision.decision.reason_code}")
                await self._timed("projection", reader.get_projection(subject, timeout_ms=int(CALL_SECONDS_MAX * 1000)))
                await self._timed("health", health(b"", timeout=CALL_SECONDS_MAX))
                await asyncio.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - started)))

    async def _timed(self, name: str, call: Awaitable[Any]) -> Any:
        started = time.monotonic()
        try:
            return await call
        except (GavelError, grpc.RpcError, AssertionError) as error:
            self.errors.append(f"{name}: {str(error)[:200]}")
            return None
        finally:
            self.seconds[name].append(time.monotonic() - started)

    def p99_ms(self) -> dict[str, float]:
        """Return the time that 99 of 100 calls do not exceed, by call, in milliseconds."""
        return {name: round(1000 * sorted(times)[int(len(times) * 0.99)], 1) for name, times in self.seconds.items()}


@asynccontextmanager
async def relay(address: str) -> AsyncIterator[str]:
    """Yield an address whose connections reach the server at `address` from CANARY_HOST."""
    host, _, port = address.rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(RELAY_BYTES):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port), local_addr=(CANARY_HOST, 0))
        with suppress(asyncio.CancelledError):  # at the end of the program, of which asyncio's streams would print a traceback
            await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as listener:
        yield "{}:{}".format(*listener.sockets[0].getsockname())


async def main(address: str, seconds: str) -> None:
    """Call, and print what was seen."""
    canary = Canary()
    async with relay(address) as relayed:
        await canary.run(relayed, float(seconds))
    calls = sum(map(len, canary.seconds.values()))
    print(json.dumps({"calls": calls, "errors": canary.errors, "p99_ms": canary.p99_ms(), "accepted": canary.accepted}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
