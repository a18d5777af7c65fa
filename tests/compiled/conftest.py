"""The wheels of the compiled build, which several files of tests install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by distribution, built as the Makefile builds them."""
    directory = tmp_path_factory.mktemp("wheels")
    for folder in ("client/python", "rules", "server"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)],
            cwd=ROOT / folder,
            env={**os.environ, "GAVEL_COMPILE": "true"},
            check=True,
            capture_output=True,
            timeout=900,  # a minute on a quiet machine
        )
    return {wheel.name.split("-")[0]: wheel for wheel in directory.glob("*.whl")}
