"""One run of the simulated world, from a seed to a checked log. As a program: `python -m tests.simulation.run SEED`."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import Coroutine
from typing import Any, NamedTuple

import structlog
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.state.state import State

from tests.simulation import actors, invariants, payouts
from tests.simulation.virtual_time import run_virtually
from tests.simulation.world import BUS, Weather, World
from tests.support.driver import replay_log
from tests.support.simulation.faults import FaultRates


class Run(NamedTuple):
    """The result of a run."""

    seed: int
    events: int
    faults: int
    chain_hash: str
    digest: str
    names: frozenset[str]
    outranked: int
    repeats: int  # answers to requests that were repeated in flight, after the first answer
    failures: list[str]


def simulate(seed: int) -> Run:
    """Run the world of a seed, let it settle, and check its log."""
    return run_virtually(_simulate(seed))


def weather_of(seed: int) -> Weather:
    """Return the faults of a seed: from none to all at once."""
    randomness = random.Random(f"weather/{seed}")
    stormy = randomness.choice((0.0, 0.02, 0.08))
    rates = FaultRates(
        applied_but_unknown=randomness.choice((0.0, stormy)),
        lost_and_unknown=randomness.choice((0.0, stormy)),
        unavailable=randomness.choice((0.0, stormy)),
        head_moved=randomness.choice((0.0, stormy)),
    )
    return Weather(
        rates=rates,
        servers=randomness.choice((1, 2, 2, 3)),
        kills=randomness.random() < 0.5,
        outages=randomness.random() < 0.5,
        clock_jumps=randomness.random() < 0.7,
        repeats=randomness.random() < 0.7,
        forgetting=randomness.random() < 0.5,
    )


async def _simulate(seed: int) -> Run:
    world = World(seed, weather_of(seed))
    await world.open()
    await actors.operator(world, world.randomness("first operator"), 0)
    reactor = asyncio.create_task(actors.reactor(world, world.randomness("reactor")))
    faults = [asyncio.create_task(fault) for fault in _faults(world)]
    await asyncio.gather(*_actors(world))
    world.calm = True
    await asyncio.gather(*faults)
    for server in world.servers:
        server.skew_ms = 0
        server.link.down = False
    # Long enough for every timer to fire and every clock to catch up.
    await asyncio.sleep(30)
    await reactor
    digests = await _settle(world)
    await world.stop()
    return await _check(world, digests)


def _actors(world: World) -> list[Coroutine[Any, Any, None]]:
    cast = [
        actors.operator(world, world.randomness("operator"), 5),
        actors.reader(world, world.randomness("reader"), 60),
        actors.person(world, world.randomness("person"), 20),
        actors.hasty_agent(world, world.randomness("hasty"), 14),
        actors.crowd(world, world.randomness("crowd"), 3),
        actors.tool_user(world, world.randomness("tools"), 12),
    ]
    cast += [
        payouts.administrator(world, world.randomness("administrator"), 7),
        payouts.clerk(world, world.randomness("clerk"), 20),
        payouts.voters(world, world.randomness("voters"), 60),
    ]
    cast += [actors.sensor(world, world.randomness(f"sensor {number}"), 45) for number in range(3)]
    cast += [actors.agent(world, world.randomness(f"agent {number}"), 50) for number in range(3)]
    cast += [actors.executor(world, world.randomness(f"executor {producer.id}"), 30, producer) for producer in actors.EXECUTORS]
    return cast


def _faults(world: World) -> list[Coroutine[Any, Any, None]]:
    faults = []
    if world.weather.kills:
        faults.append(actors.killer(world, world.randomness("killer"), 8))
    if world.weather.outages:
        faults.append(actors.outages(world, world.randomness("outages"), 8))
    if world.weather.clock_jumps:
        faults.append(actors.clockmaker(world, world.randomness("clocks"), 10))
    if world.weather.forgetting:
        faults.append(actors.forgetting(world, world.randomness("forgetting"), 60))
    return faults


async def _settle(world: World) -> list[str]:
    """Let every server read the whole log, and return the digests of their states."""
    digests = []
    head = (await world.log.head()).sequence_number
    for server in world.servers:
        await server.sequencer.wait_for(head, 60_000)
        digests.append((await server.sequencer.settled_state()).digest())
    return digests


async def _check(world: World, digests: list[str]) -> Run:
    records = await world.records()
    events = [Envelope.FromString(record.envelope) for record in records]
    failures = list(world.failures)
    for check in (*invariants.CHECKS, payouts.approvals_have_their_votes, payouts.events_were_granted):
        failures.extend(f"{check.__name__}: {problem}" for problem in check(events))
    for key, record in world.acknowledged.items():
        if record.sequence_number > len(records) or records[record.sequence_number - 1] != record:
            failures.append(f"acknowledged, but not in the log: {key}, event {record.sequence_number}")
    try:
        digest = replay_log(BUS, records).state.digest()
    except Exception as error:  # noqa: BLE001  # any error is a failure of the run
        failures.append(f"replay: {type(error).__name__}: {error}")
        digest = ""
    rebuilt = State(BUS)
    for event in events:
        rebuilt.apply(event)
    failures.extend(f"server {number} of the last ones has another state" for number, other in enumerate(digests, 1) if other != digest)
    if rebuilt.conflict_keys != invariants.holders(events)[0]:
        failures.append("the holders of conflict keys in the state differ from those of the log")
    if rebuilt.digest() != digest:
        failures.append("the state rebuilt from the log differs")
    return Run(
        world.seed,
        len(events),
        sum(log.faults for log in world.faulty),
        records[-1].chain_hash.hex(),
        digest,
        frozenset("Compensation" if event.decision.compensates_decision_id else event.event_name for event in events),
        sum(event.decision.reason_code == reason_codes.OUTRANKED for event in events),
        world.repeats,
        failures,
    )


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    finished = simulate(int(sys.argv[1]))
    for failure in finished.failures:
        print(failure)
    print(json.dumps({"events": finished.events, "chain_hash": finished.chain_hash, "digest": finished.digest}))
    sys.exit(1 if finished.failures else 0)
