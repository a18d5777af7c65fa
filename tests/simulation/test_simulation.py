"""The simulated world, for many seeds. A failing seed is reported and reproduces; `SIMULATION_SEEDS=…` runs more of them."""

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
# The rest runs in `make test-long`, where all of them together must cover every fault.
SEEDS_SHORT = 3

run_of = cache(simulate)


@pytest.fixture(autouse=True)
def _silence_servers() -> Iterator[None]:
    """Silence the servers, which log every injected outage."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] if seed >= SEEDS_SHORT else []) for seed in range(SEEDS)])
def test_world(seed: int) -> None:
    """Under all faults, the log keeps its invariants, holds every answer and replays, and all servers have the same state."""
    run = run_of(seed)
    command = f"SIMULATION_SEEDS={seed + 1} pytest 'tests/simulation/test_simulation.py::test_world[{seed}]'"
    assert [] == run.failures, f"seed {seed}, {weather_of(seed)}; again: {command}"


def test_a_seed_repeats() -> None:
    """The same seed gives the same log, to the last byte; another seed gives another log."""
    first, command, other = run_of(1), simulate(1), run_of(2)
    assert first == command
    assert first.chain_hash != other.chain_hash


@pytest.mark.long
def test_fixed_seeds_cover_every_fault() -> None:
    """The fixed seeds cover every kind of fault and everything that can happen to a decision."""
    runs = [run_of(seed) for seed in range(SEEDS_DEFAULT)]
    weathers = [weather_of(seed) for seed in range(SEEDS_DEFAULT)]
    assert {1, 2, 3} == {weather.servers for weather in weathers}
    assert all(any(getattr(weather, name) for weather in weathers) for name in ("kills", "outages", "clock_jumps", "repeats", "forgetting"))
    assert sum(run.faults for run in runs) > 100
    names = Counter(name for run in runs for name in run.names)
    expected = {
        "DecisionApproved", "DecisionRejected", "DecisionExpired", "HumanReviewRequested", "NeedsHumanReview", "FactCollectionRequested",
        "ExecutionStarted", "ExecutionSucceeded", "ExecutionFailed", "ExecutionAborted", "ExecutionPartiallySucceeded", "FactDerived",
        "LateExecutionReport", "Compensation", "DecisionRevoked", "ReviewResolved", "ReviewVoted", "ReviewEscalated", "GrantsDeployed",
        "RuleSetActivated", "RuleSetDeactivated", "ObservationRecorded", "ToolReturned",
    }  # fmt: skip
    assert expected <= names.keys()
    assert sum(run.outranked for run in runs) >= 3
    assert sum(run.repeats for run in runs) > 100
