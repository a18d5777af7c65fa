"""An endurance test of deployments: the memory of a server must not grow with the number of rule sets that were in force.

    python -m tests.load.redeployments --cycles 2000        (make soak)

Each cycle deploys a new version, makes it a shadow, puts it in force and lets it decide, over real gRPC on a real Redis. The compiler
process is left out, because it would take nearly all of the time. Memory is the resident set of this process after the first
quarter, in which caches fill. It may grow by the deployed texts, which the state keeps. The exit status is 1 if it grows more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.rule_set_service_pb2 import ActivateRuleSetRequest
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_server.log import EventLog
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog

from tests.integration.services.world import RULE_SET, Clock, World, fact, proposal, running_world

# The state keeps each text twice, as written and canonical, and the position of each event for the idempotency window.
# Measured: 8 KB per cycle, ten times the text.
TEXT_FACTOR: Final = 20
# Slack of the allocator. Compiled rule sets that leak exceed it within some twenty cycles.
SLACK_BYTES: Final = 8 * 1024 * 1024
PAGE_BYTES: Final = 4096


def resident_bytes() -> int:
    """Return the resident set of this process, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class WallClock(Clock):
    """The clock of this machine, which is also the clock of its Redis."""

    def __call__(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


async def cycle(world: World, version: int) -> None:
    """Deploy a version, make it a shadow, put it in force, and check that it decides."""
    await world.deploy(RULE_SET.replace("version: 1", f"version: {version}"))
    for mode in (fact_pb2.ACTIVATION_MODE_SHADOW, fact_pb2.ACTIVATION_MODE_ACTIVE):
        await world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(policy_id="refunds", version=version, mode=mode))
        status = await world.publish(fact("order/1", "order.status", "cancelled"))
        decision = (await world.propose(proposal("order/1", cites=[status], trace_id=f"{version}-{mode}"))).decision
    if (decision.outcome, decision.policy_version) != (decision_pb2.OUTCOME_REJECTED, version):
        raise RuntimeError(f"version {version} does not decide: {decision}")


async def soak(cycles: int, redis_url: str) -> int:
    """Run the cycles; return the growth of memory after the first quarter, in bytes."""

    async def open_log(bus: str, clock: Clock) -> EventLog:
        return await RedisLog.connect(redis_url, bus, idempotency_window_ms=IDEMPOTENCY_WINDOW_MS_DEFAULT)

    async with running_world(open_log, WallClock()) as world:
        before = 0
        for version in range(1, cycles + 1):
            if version == cycles // 4 + 1:
                before = resident_bytes()
            await cycle(world, version)
            if version % 100 == 0:
                print(f"{version} cycles, {resident_bytes() / 1e6:.1f} MB", file=sys.stderr, flush=True)
        return resident_bytes() - before


async def main(cycles: int) -> int:
    """Run the test on a Redis of its own, print the result, and return the exit status."""
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedRedis(Path(directory)) as redis:
            growth = await soak(cycles, redis.url)
    allowed = (cycles - cycles // 4) * len(RULE_SET) * TEXT_FACTOR + SLACK_BYTES
    print(f"{cycles} cycles: {growth / 1e6:.1f} MB more, {allowed / 1e6:.1f} MB allowed")
    return 0 if growth <= allowed else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=2000, help="how many versions to deploy; at least 8")
    sys.exit(asyncio.run(main(parser.parse_args().cycles)))
