"""The same commands at the same moments give the same log in every process: hash seed, time zone, locale and batches do not matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.run import simulate
from tests.simulation.script import COMMANDS_PER_MOMENT, decide

ROOT = Path(__file__).parents[2]
SEED = 15


def in_another_process(module: str, *arguments: object, **environment: str) -> Any:
    """Run a module of the tests as a program in this environment and return what it printed."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    said = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=100
    ).stdout
    return json.loads(said.splitlines()[-1])


@pytest.fixture(scope="module")
def here() -> dict[str, object]:
    """What the script gives in this process, one command at a time."""
    return decide(SEED, 1)


def test_the_script_says_much(here: dict[str, object]) -> None:
    """The script that is compared is long and has nearly every kind of event."""
    assert isinstance(here["events"], int)
    assert here["events"] > 300
    names = here["names"]
    assert isinstance(names, list)
    expected = {"DecisionApproved", "DecisionExpired", "ExecutionSucceeded", "FactDerived", "ObservationRecorded", "NeedsHumanReview"}
    assert expected <= set(names)


@pytest.mark.parametrize("batch_size", [2, 3, COMMANDS_PER_MOMENT, 100])
def test_batches_do_not_matter(here: dict[str, object], batch_size: int) -> None:
    """However many commands a batch takes, the log is the same."""
    assert here == decide(SEED, batch_size)


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
    """Another process with another hash seed, time zone and locale, and other batches, makes the same log."""
    assert here == in_another_process("tests.simulation.script", SEED, 5, **environment)


def test_a_simulation_repeats_in_another_process() -> None:
    """A whole simulated run, with servers, faults and clocks, comes out the same under another hash seed: a seed says it all."""
    run = simulate(SEED)
    again = in_another_process("tests.simulation.run", SEED, PYTHONHASHSEED="99", TZ="Asia/Kathmandu")
    assert {"events": run.events, "chain_hash": run.chain_hash, "digest": run.digest} == again
