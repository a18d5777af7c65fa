"""Short forms of the campaigns `make outages` and `make sanitize`, on the compiled build and under Python's checking allocator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.machine.checking_allocator import CHECKING
from tests.support.paths import ROOT


def run_program(module: str, *arguments: str) -> None:
    """Run a program of the tests and assert that it succeeds."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, **CHECKING, "PYTHONPATH": str(ROOT / "build/compiled")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(420)
def test_outages_of_redis() -> None:
    """After an outage of each kind under load the server works, has every answer, and its memory is intact."""
    run_program("tests.campaigns.outages", "--outages", "7", "--no-timings")


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_requests(seed: int) -> None:
    """Mutated requests are answered or refused, the log replays, and memory stays intact."""
    run_program("tests.campaigns.mutations", str(seed), "1000")
