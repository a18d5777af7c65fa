"""Measures what a long log costs a server: its memory while the log grows, and the time of proposals on a long and on a short log.

    python -m tests.load.growth [--events 1000000 3000000] [--short 10000] [--submits 2000]

A server follows a log of finished work (`finished_work`) while it is written. The command prints the resident memory of its process
at each length, and the ratio of the last to the first. Then callers propose on this bus and on a bus with a short log, in turn, and the
command prints the 95th percentile of both and their ratio. It fails if a ratio is above its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gavel_client import GavelClient

from tests.e2e.world import Server, run_servers
from tests.load.finished_work import ORDER_FACTS, order_fact, refund, write_log
from tests.support.redis.tcp import redis_on_tcp

DAYS: Final = 30.0
LONG, SHORT = "long", "short"
# Snapshots and the index are behind the head for a while, and free pages return to the system.
SETTLE_SECONDS: Final = 20.0
MEMORY_RATIO_MAX: Final = 1.2
LATENCY_RATIO_MAX: Final = 1.1


async def grow(url: str, server: Server, lengths: Sequence[int]) -> list[int]:
    """Let the long log grow; return the resident memory of the server at each length, in bytes."""
    resident: list[int] = []
    async with server.client(LONG) as client:
        async for work in write_log(url, LONG, lengths[-1], DAYS):
            number = work.head.sequence_number
            if number < lengths[len(resident)]:
                continue
            await follow(client, number)
            await asyncio.sleep(SETTLE_SECONDS)
            resident.append(resident_bytes(server.running.pid))
            print(f"{number:,} events: {resident[-1] / 1e6:.0f} MB", flush=True)
            if len(resident) == len(lengths):
                break
    return resident


async def follow(client: GavelClient, number: int) -> None:
    """Return once the server has read the log up to an event."""
    while (await client.get_status(timeout_ms=60_000)).head_sequence_number < number:  # noqa: ASYNC110 - by polls
        await asyncio.sleep(0.2)


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


async def propose(server: Server, submits: int) -> dict[str, float]:
    """Propose refunds on both buses in turn; return the 95th percentile of the calls of each, in milliseconds."""
    times: dict[str, list[float]] = {LONG: [], SHORT: []}
    clients = {bus: server.client(bus) for bus in times}
    for number in range(submits):
        for bus, client in clients.items():
            subject = f"order/new-{number}"
            facts = [(await client.publish_event(order_fact(subject, key, value))).envelope for key, value in ORDER_FACTS.items()]
            proposal = refund(subject, facts)
            began = time.perf_counter()
            await client.submit_proposal(proposal)
            times[bus].append(1000 * (time.perf_counter() - began))
    for client in clients.values():
        await client.close()
    return {bus: statistics.quantiles(samples, n=20)[-1] for bus, samples in times.items()}


async def measure(directory: Path, lengths: Sequence[int], short: int, submits: int) -> bool:
    """Measure all, print it, and return whether the goals are met."""
    async with redis_on_tcp(directory / "redis") as store:
        server = Server(directory / "server", redis_url=store.url, options=("--accept-volatile",), installed=True)
        with run_servers(server):
            resident = await grow(store.url, server, lengths)
            async for work in write_log(store.url, SHORT, short, DAYS):
                last = work.head.sequence_number
            async with server.client(SHORT) as client:
                await follow(client, last)
            latencies = await propose(server, submits)
    memory, latency = resident[-1] / resident[0], latencies[LONG] / latencies[SHORT]
    print(f"memory: {memory:.2f} times (goal {MEMORY_RATIO_MAX})")
    print(f"p95 of SubmitProposal: {latencies[LONG]:.2f} ms, after {last:,} events {latencies[SHORT]:.2f} ms: {latency:.2f} times", end="")
    print(f" (goal {LATENCY_RATIO_MAX})", flush=True)
    return memory <= MEMORY_RATIO_MAX and latency <= LATENCY_RATIO_MAX


def main() -> int:
    """Parse the arguments and measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 3_000_000], help="lengths of the log, ascending")
    parser.add_argument("--short", type=int, default=10_000, help="length of the short log")
    parser.add_argument("--submits", type=int, default=2_000, help="proposals on each bus")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return 0 if asyncio.run(measure(Path(directory), options.events, options.short, options.submits)) else 1


if __name__ == "__main__":
    sys.exit(main())
