"""The two builds write the same bytes, and each replays the log of the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

SOURCE = ("proto/gen/python", "rules", "server", "client/python")
IMPORTED_FROM = {"compiled": [ROOT / "build/compiled"], "interpreted": [ROOT / directory for directory in SOURCE]}
OTHER = {"compiled": "interpreted", "interpreted": "compiled"}


def on(build: str, module: str, *arguments: object) -> Any:
    """Run a module of the tests as a program on this build and return the last line that it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, IMPORTED_FROM[build]))}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("build", ["compiled", "interpreted"])
def test_a_log_of_one_build_replays_on_the_other(build: str, tmp_path: Path) -> None:
    """The other build replays the log of the story to the same state, and writes the same bytes."""
    file, again = tmp_path / "log", tmp_path / "again"
    told = on(build, "tests.compiled.program", "tell", file)
    replayed = on(OTHER[build], "tests.compiled.program", "replay", file)
    on(OTHER[build], "tests.compiled.program", "tell", again)
    assert (build, OTHER[build]) == (told.pop("build"), replayed.pop("build"))
    assert told["events"] > 50
    assert told == replayed
    assert file.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("seed", [3, 7, 11])
def test_a_simulated_world_is_the_same_on_both_builds(seed: int) -> None:
    """A seed of the simulation gives the same log on both builds."""
    interpreted, compiled = (on(build, "tests.simulation.run", seed) for build in ("interpreted", "compiled"))
    assert interpreted["events"] > 100
    assert interpreted == compiled
