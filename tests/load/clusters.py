"""Compares many buses on a Redis Cluster with one bus on one Redis, on the same processors.

    python -m tests.load.clusters [--buses 50] [--masters 3] [--seconds 20] [--rounds 3]

Each round measures both, one after the other: one server decides proposals on one bus in one Redis; two servers do on many buses in a
cluster. The callers are the same: as many calls at once, each with a batch of proposals. The command prints decisions a second, the
processor time of each decision by kind of process, and the median ratio of the rounds. It fails if the ratio is below 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient

from tests.e2e.world import Server, fronts_of, open_bus, proposal, publish_status, run_servers
from tests.load.targets import cpu_seconds
from tests.support.redis.cluster import DURABLE, running_cluster
from tests.support.redis.tcp import RedisOnTcp, redis_on_tcp

CALLS: Final = 50
BATCH: Final = 20
WARM_UP_SECONDS: Final = 3.0


class Rate(NamedTuple):
    """Decisions a second, and the microseconds of processor time that each took in callers, fronts, servers and stores."""

    decisions: float
    callers: float
    fronts: float
    servers: float
    stores: float

    def __str__(self) -> str:
        """Return the rate for people."""
        return (
            f"{self.decisions:,.0f} decisions a second; processor time of each: servers {self.servers:.0f} µs, fronts {self.fronts:.0f} "
            f"µs, Redis {self.stores:.0f} µs, callers {self.callers:.0f} µs"
        )


class World(NamedTuple):
    """Servers and their stores."""

    servers: Sequence[Server]
    stores: Sequence[RedisOnTcp]

    def cpu(self) -> tuple[float, float, float, float]:
        """Return the processor time so far of callers, fronts, servers and stores, in seconds."""
        processes = [server.running.pid for server in self.servers]
        fronts = [front for process in processes for front in fronts_of(process)]
        stores = [store.process.pid for store in self.stores]
        callers, fronts_used, servers, stores_used = (sum(map(cpu_seconds, group)) for group in ([os.getpid()], fronts, processes, stores))
        return callers, fronts_used, servers, stores_used


async def measure(world: World, buses: Sequence[str], seconds: float) -> Rate:
    """Return how many proposals the servers decide in a second, on all buses together."""
    clients = [world.servers[index % len(world.servers)].client(bus, tries_max=None) for index, bus in enumerate(buses)]
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
    before, began, cpu_before = sum(counts), time.monotonic(), world.cpu()
    await asyncio.sleep(seconds)
    decisions, elapsed, cpu_after = sum(counts) - before, time.monotonic() - began, world.cpu()
    end.set()
    await asyncio.gather(*tasks)
    await _close(clients)
    return Rate(decisions / elapsed, *(1e6 * (after - before) / decisions for before, after in zip(cpu_before, cpu_after, strict=True)))


async def _close(clients: Sequence[GavelClient]) -> None:
    for client in clients:
        await client.close()


async def measure_one(directory: Path, seconds: float) -> Rate:
    """Measure one server, one bus and one Redis."""
    async with redis_on_tcp(directory / "redis", *DURABLE) as store:
        server = Server(directory / "server", redis_url=store.url, installed=True)
        with run_servers(server):
            return await measure(World([server], [store]), ["single"], seconds)


async def measure_many(directory: Path, buses: int, masters: int, seconds: float) -> Rate:
    """Measure two servers, many buses and a cluster."""
    async with running_cluster(directory / "cluster", masters) as cluster:
        servers = [Server(directory / f"server-{number}", redis_url=cluster.url, installed=True) for number in range(2)]
        with run_servers(*servers):
            return await measure(World(servers, cluster.masters), [f"bus-{number}" for number in range(buses)], seconds)


async def compare(directory: Path, buses: int, masters: int, seconds: float, rounds: int) -> float:
    """Measure both in each round, print the figures and return the median of their ratios."""
    ratios = []
    for number in range(rounds):
        one = await measure_one(directory / f"one-{number}", seconds)
        many = await measure_many(directory / f"many-{number}", buses, masters, seconds)
        ratios.append(many.decisions / one.decisions)
        sys.stdout.write(f"one bus, one Redis, one server: {one}\n")
        sys.stdout.write(f"{buses} buses, {masters} masters, two servers: {many}; {ratios[-1]:.2f} times as many\n")
        sys.stdout.flush()
    ratio = statistics.median(ratios)
    sys.stdout.write(f"median of {rounds} rounds: {ratio:.2f} times as many\n")
    return ratio


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buses", type=int, default=50)
    parser.add_argument("--masters", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ratio = asyncio.run(compare(Path(directory), arguments.buses, arguments.masters, arguments.seconds, arguments.rounds))
    sys.exit(0 if ratio >= 1 else 1)


if __name__ == "__main__":
    main()
