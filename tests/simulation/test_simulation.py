"""The simulated world, run by seeds. A failing seed is named and reproduces: `SIMULATION_SEEDS=…` runs more of them."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
import structlog

from tests.simulation.run import simulate, weather_of

SEEDS_DEFAULT = 12
SEEDS = int(os.environ.get("SIMULATION_SEEDS", SEEDS_DEFAULT))

run_of = cache(simulate)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Outages are what a simulation is made of: the server need not say each of them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_world(seed: int) -> None:
    """Whatever went wrong, the log is lawful, every answer stands in it, a replay proves it, and all servers show the same state."""
    run = run_of(seed)
    again = f"SIMULATION_SEEDS={seed + 1} pytest 'tests/simulation/test_simulation.py::test_world[{seed}]'"
    assert [] == run.failures, f"seed {seed}, {weather_of(seed)}; again: {again}"


def test_a_seed_repeats() -> None:
    """The same seed gives the same log, to the last byte, and another seed another one."""
    first, again, other = run_of(3), simulate(3), run_of(4)
    assert first == again
    assert first.chain_hash != other.chain_hash


def test_the_world_is_wild_enough() -> None:
    """The fixed seeds see every kind of weather, many faults, and all that can happen to a decision."""
    runs = [run_of(seed) for seed in range(SEEDS_DEFAULT)]
    weathers = [weather_of(seed) for seed in range(SEEDS_DEFAULT)]
    assert {1, 2, 3} == {weather.servers for weather in weathers}
    assert all(any(getattr(weather, name) for weather in weathers) for name in ("kills", "outages", "clock_jumps"))
    assert sum(run.faults for run in runs) > 100
    names = Counter(name for run in runs for name in run.names)
    expected = {
        "DecisionApproved", "DecisionRejected", "DecisionExpired", "HumanReviewRequested", "NeedsHumanReview", "FactCollectionRequested",
        "ExecutionStarted", "ExecutionSucceeded", "ExecutionFailed", "ExecutionAborted", "ExecutionPartiallySucceeded", "FactDerived",
        "LateExecutionReport", "Compensation", "DecisionRevoked", "ReviewResolved",
        "RuleSetActivated", "RuleSetDeactivated", "ObservationRecorded", "ToolReturned",
    }  # fmt: skip
    assert expected <= names.keys()
    assert sum(run.outranked for run in runs) >= 5
