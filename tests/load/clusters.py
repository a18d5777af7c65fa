"""Compares many buses on a Redis Cluster with one bus on one Redis, on the same processors.

    python -m tests.load.clusters [--buses 50] [--masters 3] [--seconds 20]

First one server decides proposals on one bus in one Redis, then two servers on many buses in a cluster. The callers are the same: as
many calls at once, each with a batch of proposals. The command prints decisions a second and the ratio, and fails if it is below 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient

from tests.e2e.world import Server, open_bus, proposal, publish_status, run_servers
from tests.support.redis.cluster import DURABLE, running_cluster
from tests.support.redis.tcp import redis_on_tcp

CALLS: Final = 50
BATCH: Final = 20
WARM_UP_SECONDS: Final = 3.0


async def decisions_a_second(servers: Sequence[Server], buses: Sequence[str], seconds: float) -> float:
    """Return how many proposals the servers decide in a second, on all buses together."""
    clients = [servers[index % len(servers)].client(bus, tries_max=None) for index, bus in enumerate(buses)]
    facts: list[list[Envelope]] = []  # of each caller, who meets no other one on a parcel
    for client in clients:
        await open_bus(client)
    for index in range(CALLS):
        subjects = [f"parcel/{index}-{number}" for number in range(BATCH)]
        facts.append(list((await publish_status(clients[index % len(clients)], subjects)).values()))
    counts = [0] * CALLS
    end = asyncio.Event()

    async def call(index: int) -> None:
        client = clients[index % len(clients)]
        while not end.is_set():
            response = await client.batch_submit_proposals([proposal(fact) for fact in facts[index]])
            counts[index] += len(response.results)

    tasks = [asyncio.create_task(call(index)) for index in range(CALLS)]
    await asyncio.sleep(WARM_UP_SECONDS)
    before, began = sum(counts), time.monotonic()
    await asyncio.sleep(seconds)
    rate = (sum(counts) - before) / (time.monotonic() - began)
    end.set()
    await asyncio.gather(*tasks)
    await _close(clients)
    return rate


async def _close(clients: Sequence[GavelClient]) -> None:
    for client in clients:
        await client.close()


async def compare(directory: Path, buses: int, masters: int, seconds: float) -> float:
    """Measure both, print the figures and return their ratio."""
    async with redis_on_tcp(directory / "redis", *DURABLE) as single:
        server = Server(directory / "single", redis_url=single.url, installed=True)
        with run_servers(server):
            one = await decisions_a_second([server], ["single"], seconds)
    async with running_cluster(directory / "cluster", masters) as cluster:
        servers = [Server(directory / f"server-{number}", redis_url=cluster.url, installed=True) for number in range(2)]
        with run_servers(*servers):
            many = await decisions_a_second(servers, [f"bus-{number}" for number in range(buses)], seconds)
    sys.stdout.write(f"one bus, one Redis, one server: {one:,.0f} decisions a second\n")
    sys.stdout.write(f"{buses} buses, {masters} masters, two servers: {many:,.0f} decisions a second, {many / one:.2f} times as many\n")
    return many / one


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buses", type=int, default=50)
    parser.add_argument("--masters", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ratio = asyncio.run(compare(Path(directory), arguments.buses, arguments.masters, arguments.seconds))
    sys.exit(0 if ratio >= 1 else 1)


if __name__ == "__main__":
    main()
