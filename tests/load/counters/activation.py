"""How long other callers wait while new counters get their past: `make activation`.

    python -m tests.load.counters.activation [--events 500000] [--rate 100] [--seconds 30] [--holds]

It makes a log of finished refunds and starts a server on it. A caller proposes parcels at a fixed rate. Meanwhile a version of the refund
rules with three new counters is activated: the server counts the whole log for it. The command prints the latencies of the proposals before
and during the activation, and their ratio at the 99th percentile. It fails if that is above RATIO_MAX, or if a counter gives another
number than the log has.

`--holds` prints the longest callbacks of the server's event loop instead of judging the ratio (`loop_holds`): that loop is slower.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, fact_envelope, new_event_id, proposal_envelope, reference
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set

from tests.e2e.world import DAY_MS, Server, open_bus, proposal, publish_status, run_servers
from tests.load.core_cost import with_limits
from tests.load.finished_work import ACTION, AGENT, AMOUNT, CUSTOMER, DATABASE, ORDER_FACTS, write_log
from tests.load.loop_holds import World
from tests.support.redis.cluster import DURABLE
from tests.support.redis.tcp import redis_on_tcp

BUS: Final = "default"
COUNTERS: Final = 3
RATIO_MAX: Final = 2.0
# The log is a day shorter than the windows of the counters, so that no refund leaves them during the activation.
WINDOW_DAYS: Final = 30
LOG_DAYS: Final = 29
WARM_UP_SECONDS: Final = 5.0
# The longest activation: the deadline of its call.
ACTIVATION_SECONDS_MAX: Final = 300
HOLDS: Final = 8


class SteadyCaller:
    """Proposes parcels at a fixed rate, whether earlier calls have been answered or not. `latencies_ms` are those of the answered calls."""

    def __init__(self, client: GavelClient, facts: Iterator[Envelope], rate: float) -> None:
        self.latencies_ms: list[float] = []
        self._client = client
        self._facts = facts
        self._rate = rate

    async def call_until(self, end: asyncio.Future[Any]) -> None:
        """Propose until `end` is done, and wait for the answers."""
        calls: list[asyncio.Task[None]] = []
        due = time.perf_counter()
        while not end.done():
            calls.append(asyncio.create_task(self._propose(due)))
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.gather(*calls)

    async def _propose(self, due: float) -> None:
        decision = (await self._client.submit_proposal(proposal(next(self._facts)))).decision.decision
        if decision.outcome != OUTCOME_APPROVED:
            raise RuntimeError(f"a parcel is not approved: {decision}")
        self.latencies_ms.append(1000 * (time.perf_counter() - due))


def counting_rule_set() -> str:
    """Return version 2 of the shipped refund rules, with counters of the amounts that a customer was approved."""
    text = shipped_rule_set("refunds").replace("\nversion: 1\n", "\nversion: 2\n")
    return with_limits(text, COUNTERS, 0, are_counters=True, window_ms=WINDOW_DAYS * DAY_MS)


async def counted_amounts(client: GavelClient) -> list[float]:
    """Return what the counters give for the customer of the log, as the decision on one more refund states it."""
    subject = "order/last"
    facts = [fact_envelope(subject, DATABASE, key=key, value=value) for key, value in ORDER_FACTS.items()]
    response = await client.batch_publish_events(facts)
    envelope = proposal_envelope(
        subject,
        AGENT,
        action_type=ACTION,
        params={"amount": AMOUNT, "currency": "EUR", "customer_id": CUSTOMER},
        max_fact_age_ms=DAY_MS,
        based_on_events=[reference(result.envelope) for result in response.results],
        confidence=0.9,
        event_id=new_event_id(),
    )
    return [reading.value for reading in (await client.submit_proposal(envelope)).decision.decision.counters]


async def measure(client: GavelClient, rate: float, seconds: float) -> tuple[list[float], list[float], float]:
    """Return the latencies before and during the activation, in milliseconds, and how many seconds that took."""
    await open_bus(client)
    await client.deploy_rule_set(counting_rule_set())
    parcels = int(rate * (WARM_UP_SECONDS + seconds + ACTIVATION_SECONDS_MAX))
    facts = iter((await publish_status(client, [f"parcel/{number}" for number in range(parcels)])).values())
    gc.collect()
    gc.freeze()  # collections of this process would count as latency
    phases: list[list[float]] = []
    for pause in (WARM_UP_SECONDS, seconds):
        caller = SteadyCaller(client, facts, rate)
        await caller.call_until(asyncio.ensure_future(asyncio.sleep(pause)))
        phases.append(caller.latencies_ms)
    caller, began = SteadyCaller(client, facts, rate), time.monotonic()
    activation = asyncio.ensure_future(client.activate_rule_set("refunds", 2))
    await caller.call_until(activation)
    activation.result()
    return phases[-1], caller.latencies_ms, time.monotonic() - began


def describe(name: str, latencies_ms: list[float]) -> str:
    """Return the percentiles of latencies as a line."""
    return (
        f"{name}: {len(latencies_ms)} proposals, p50 {statistics.median(latencies_ms):.1f} ms, p99 {p99(latencies_ms):.1f} ms, "
        f"longest {max(latencies_ms):.1f} ms"
    )


def p99(latencies_ms: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(latencies_ms, n=100)[98]


@contextmanager
def measured_server(directory: Path, redis_url: str, *, holds: bool) -> Iterator[tuple[str, World]]:
    """Run a server; yield its address, and the world that measures its loop with `holds`."""
    world = World(directory)
    # Without an index of the log, which another process would build meanwhile.
    options = ("--index-from", str(10**9))
    if holds:
        try:
            yield world.start("--redis", redis_url, "--data", str(directory / "server"), *options), world
        finally:
            world.stop()
    else:
        server = Server(directory / "server", redis_url=redis_url, options=options, installed=True)
        with run_servers(server):
            yield server.address, world


@asynccontextmanager
async def finished_log(directory: Path, events: int) -> AsyncIterator[tuple[str, int]]:
    """Run a Redis with a log of finished refunds; yield its URL and the number of refunds."""
    async with redis_on_tcp(directory / "redis", *DURABLE) as redis:
        began = time.monotonic()
        work = [work async for work in write_log(redis.url, BUS, events, LOG_DAYS)][-1]
        seconds = time.monotonic() - began
        print(f"log: {work.head.sequence_number} events, {work.orders} refunds, made in {seconds:.0f} s", flush=True)
        yield redis.url, work.orders


async def run(events: int, rate: float, seconds: float, *, holds: bool) -> int:
    """Measure, print the result and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="activation-") as name:
        directory = Path(name)
        async with finished_log(directory, events) as (url, refunds):
            with measured_server(directory, url, holds=holds) as (address, world):
                async with GavelClient(address, tries_max=1) as client:
                    world.holds()
                    before, during, activation_seconds = await measure(client, rate, seconds)
                    longest = sorted(world.holds(), reverse=True)[:HOLDS]
                    amounts = await counted_amounts(client)
    ratio = p99(during) / p99(before)
    print(describe("before", before))
    print(describe(f"during {activation_seconds:.1f} s", during))
    print(f"ratio at the 99th percentile: {ratio:.2f} (at most {RATIO_MAX})")
    for hold_seconds, collected, what in longest:
        print(f"  {1000 * hold_seconds:7.1f} ms ({1000 * collected:.1f} ms of it collecting garbage)  {what}")
    if amounts != [refunds * AMOUNT] * COUNTERS:
        print(f"the counters give {amounts}; the log has {refunds} refunds of {AMOUNT}")
        return 1
    return 0 if holds or ratio <= RATIO_MAX else 1


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=500_000, help="how many events the log has (default 500,000)")
    parser.add_argument("--rate", type=float, default=100.0, help="proposals a second (default 100)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure before the activation (default 30)")
    parser.add_argument("--holds", action="store_true", help="print the longest callbacks of the loop; do not judge the ratio")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run(arguments.events, arguments.rate, arguments.seconds, holds=arguments.holds)))


if __name__ == "__main__":
    main()
