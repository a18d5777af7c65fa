"""The same commands at the same times give the same log, whatever the hash seed, time zone, locale and batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.run import simulate
from tests.simulation.script import COMMANDS_PER_TIME, decide
from tests.support.paths import ROOT

SEED = 15


def in_another_process(module: str, *arguments: object, **environment: str) -> Any:
    """Run a module of the tests as a program in this environment and return what it printed."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    output = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=100
    ).stdout
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def here() -> dict[str, object]:
    """The result of the script in this process, one command at a time."""
    return decide(SEED, 1)


def test_the_script_is_long(here: dict[str, object]) -> None:
    """The script has many events of nearly every kind."""
    assert isinstance(here["events"], int)
    assert here["events"] > 300
    names = here["names"]
    assert isinstance(names, list)
    expected = {"DecisionApproved", "DecisionExpired", "ExecutionSucceeded", "FactDerived", "ObservationRecorded", "NeedsHumanReview"}
    assert expected <= set(names)


@pytest.mark.parametrize("batch_size", [2, 3, COMMANDS_PER_TIME, 100])
def test_batches_do_not_matter(here: dict[str, object], batch_size: int) -> None:
    """The log is the same for every batch size."""
    assert here == decide(SEED, batch_size)


@pytest.mark.long
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "1", "TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"},
        {"PYTHONHASHSEED": "4242", "TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "PYTHONOPTIMIZE": "1"},
    ],
    ids=lambda environment: environment["TZ"],
)
def test_processes_do_not_matter(here: dict[str, object], environment: dict[str, str]) -> None:
    """The log is the same in a process with another hash seed, time zone and locale."""
    assert here == in_another_process("tests.simulation.script", SEED, 5, **environment)


@pytest.mark.long
def test_a_simulation_repeats_in_another_process() -> None:
    """A simulated run with servers, faults and clocks is the same under another hash seed."""
    run = simulate(SEED)
    output = in_another_process("tests.simulation.run", SEED, PYTHONHASHSEED="99", TZ="Asia/Kathmandu")
    assert {"events": run.events, "chain_hash": run.chain_hash, "digest": run.digest} == output
